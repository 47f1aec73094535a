"""Files of our own writer are safetensors files, and the checksum is that of the file."""

from __future__ import annotations

import hashlib
import io

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from radioplat.models.weights.hashed_safetensors import _DTYPES, write_tensors

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
KINDS = st.tuples(st.sampled_from(sorted(_DTYPES, key=str)), SHAPES)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text(max_size=5), KINDS, max_size=5), st.dictionaries(st.text(max_size=3), st.text()))
def test_the_library_reads_what_was_written(kinds, metadata):
    torch.manual_seed(0)
    tensors = {n: (10 * torch.randn(s)).to(d) for n, (d, s) in kinds.items() if n != "__metadata__"}
    file = io.BytesIO()
    digest = write_tensors(file, tensors, metadata)
    assert digest == hashlib.sha256(file.getvalue()).hexdigest()
    found = load(file.getvalue())
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype is tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 4, 5)])
def test_any_strides_and_metadata(tmp_path, shape):
    tensors = {"t": torch.randn(shape).transpose(0, 1), "part": torch.randn(9, 9)[1::2, ::3], "grad": torch.ones(2)}
    tensors["grad"].requires_grad_()
    with open(tmp_path / "x.safetensors", "wb") as file:
        write_tensors(file, tensors, {"a": "ä\n"})
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as opened:
        assert opened.metadata() == {"a": "ä\n"}
        assert all(torch.equal(opened.get_tensor(name), tensor) for name, tensor in tensors.items())


def test_more_than_one_piece(monkeypatch):
    monkeypatch.setattr("radioplat.models.weights.hashed_safetensors._PIECE", 7)
    tensors, file = {"a": torch.arange(100), "b": torch.arange(5, dtype=torch.uint8)}, io.BytesIO()
    assert write_tensors(file, tensors) == hashlib.sha256(file.getvalue()).hexdigest()
    assert all(torch.equal(value, tensors[name]) for name, value in load(file.getvalue()).items())
