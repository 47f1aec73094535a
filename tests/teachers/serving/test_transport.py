"""bf16 features through uint16 arrays: not a bit may change."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from radioplat.models.features import Features
from radioplat.teachers.serving.transport import joined, pack, to_host, unpack

BITS = hnp.arrays(
    np.uint16, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4), elements=st.integers(0, 65535)
)


def bf16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.copy()).view(torch.bfloat16)


@given(BITS)
def test_every_bit_pattern_arrives(bits):
    """All 65536 values: NaNs with their payloads, infinities, subnormals, both zeros."""
    packed = to_host(pack(Features(bf16(bits), None, {"logits": bf16(bits)}), 0.5))
    found = unpack(packed)
    assert packed.summary.dtype == np.uint16 and packed.seconds == 0.5
    assert found.spatial is None and found.summary.dtype is torch.bfloat16 and found.summary.shape == bits.shape
    for tensor in (found.summary, found.named["logits"]):
        np.testing.assert_array_equal(tensor.view(torch.uint16).numpy(), bits)


def test_all_values_once():
    bits = np.arange(65536, dtype=np.uint16)
    found = unpack(to_host(pack(Features(bf16(bits)), 0))).summary
    np.testing.assert_array_equal(found.view(torch.uint16).numpy(), bits)


def test_views_and_wider_types_are_made_contiguous_bf16():
    wide = torch.randn(2, 3, 4, 5)
    found = unpack(pack(Features(None, wide.permute(0, 2, 3, 1)), 0)).spatial
    assert torch.equal(found, wide.permute(0, 2, 3, 1).bfloat16())


def test_read_only_memory_without_a_warning_or_a_copy(recwarn):
    packed = pickle.loads(pickle.dumps(to_host(pack(Features(torch.randn(2, 3)), 0))))
    packed.summary.flags.writeable = False  # as Ray hands it out
    found = unpack(packed).summary
    assert not recwarn.list and found.data_ptr() == packed.summary.ctypes.data


def test_rows_of_what_was_joined():
    whole = Features(torch.randn(5, 3), torch.randn(5, 2, 2, 3), {"logits": torch.randn(5, 4)})
    both = joined([pack(whole.map(lambda t: t[:2]), 1.0), pack(whole.map(lambda t: t[2:]), 2.0)])
    assert both.seconds == 3.0 and len(both) == 5 and both.nbytes == 2 * 5 * (3 + 12 + 4)
    for packed in (both, to_host(both)):
        found = unpack(packed.rows(1, 4))
        assert packed.rows(1, 4).seconds == pytest.approx(1.8)
        assert torch.equal(found.spatial, whole.spatial[1:4].bfloat16())
        assert torch.equal(found.named["logits"], whole.named["logits"][1:4].bfloat16())
