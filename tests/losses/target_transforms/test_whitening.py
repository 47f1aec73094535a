"""Whitening and scales against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.target_transforms.whitening import channel_scales, global_scale, pca, zca


def covariance(values: list[float], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator).double())[0]
    found = (turn * torch.tensor(values).double()) @ turn.T
    return (found + found.T) / 2


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([100.0, 3.0, 2.0, 1.0, 0.1, 0.003]), min_size=2, max_size=12),
    st.integers(0, 99),
    st.sampled_from([zca, pca]),
)
def test_white_and_back(values, seed, whitening):
    given_, eye = covariance(values, seed), torch.eye(len(values)).double()
    found = whitening(given_)
    assert torch.allclose(found.forward @ given_ @ found.forward.T, eye, atol=1e-9)
    assert torch.allclose(found.forward @ found.inverse, eye, atol=1e-9)
    jitter = torch.randn(given_.shape, generator=torch.Generator().manual_seed(seed)).double() * 1e-15
    again = whitening(given_ + jitter + jitter.T)
    assert torch.allclose(found.forward, again.forward, atol=1e-6)


def test_zca_is_the_inverse_root_and_pca_is_sorted():
    given_ = covariance([4.0, 9.0, 1.0], 3)
    root = zca(given_).inverse
    assert torch.allclose(root @ root, given_) and torch.allclose(root, root.T)
    found = pca(given_)
    assert torch.allclose((found.inverse.T @ found.inverse).diagonal(), torch.tensor([9.0, 4.0, 1.0]).double())


def test_a_refreshed_pca_keeps_its_rows():
    before, after = torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.diag(torch.tensor([2.0, 3.0, 1.0]))
    first = pca(before)
    later = pca(after, first.basis)
    assert torch.allclose(first.forward.sign(), later.forward.sign())
    assert torch.allclose(later.forward @ after.double() @ later.forward.T, torch.eye(3).double())
    assert torch.allclose(later.forward @ later.inverse, torch.eye(3).double())


@pytest.mark.parametrize("whitening", [zca, pca])
def test_a_direction_without_any_variance_does_not_blow_up(whitening):
    found = whitening(covariance([1.0, 1.0, 0.0, 0.0], 1))
    assert found.forward.abs().max() < 1e4
    assert torch.allclose(found.forward @ found.inverse, torch.eye(4).double(), atol=1e-6)


def test_scales():
    variance = torch.tensor([4.0, 16.0, 0.0])
    assert torch.equal(global_scale(variance), torch.tensor(20 / 3).sqrt())
    assert torch.equal(channel_scales(variance), torch.tensor([2.0, 4.0, 1e-6]))
