"""PHI-S and its eigenvectors: closed forms, and no dependence on what they should not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.target_transforms.eigenbasis import eigenbasis, matched
from radioplat.losses.target_transforms.hadamard import hadamard, has_hadamard
from radioplat.losses.target_transforms.phi_s import evened, phi_s


def rotation(width: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(seed)).double())[0]


def covariance(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    turn = rotation(len(values), seed)
    found = (turn * values.double()) @ turn.T
    return (found + found.T) / 2


def steep(width: int) -> torch.Tensor:
    """As of a real teacher: a few large eigenvalues and a long tail."""
    return torch.logspace(2, -4, width).double()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([2, 4, 12, 20, 28, 64, 96]), st.integers(0, 99))
def test_every_dimension_has_the_same_variance_and_the_way_back_is_exact(width, seed):
    given_ = covariance(steep(width), seed)
    found = phi_s(given_)
    spread = found.forward @ given_ @ found.forward.T
    assert torch.allclose(spread.diagonal(), torch.ones(width).double(), atol=1e-9)
    assert torch.allclose(found.forward @ found.inverse, torch.eye(width).double(), atol=1e-12)
    # One scale for all: it keeps angles and proportions.
    phi = math.sqrt(float(given_.diagonal().mean()))
    assert torch.allclose(found.forward @ found.forward.T * phi**2, torch.eye(width).double(), atol=1e-12)


def test_closed_form_of_a_diagonal():
    """S diagonal: U is the identity, sorted, and W = H P / phi."""
    given_ = torch.diag(torch.tensor([1.0, 9.0, 4.0, 2.0])).double()
    permutation = torch.eye(4).double()[[1, 2, 3, 0]]
    expected = torch.from_numpy(hadamard(4) / 2.0) @ permutation / 2  # phi = sqrt(16 / 4)
    assert torch.allclose(phi_s(given_).forward, expected)


@pytest.mark.parametrize("width", [1, 3, 7, 30, 188])
def test_widths_without_a_hadamard_matrix_get_equal_variances_too(width):
    assert width == 1 or not has_hadamard(width)
    given_ = covariance(steep(width) if width > 1 else torch.tensor([4.0]))
    found = phi_s(given_)
    spread = found.forward @ given_ @ found.forward.T
    assert torch.allclose(spread.diagonal(), torch.ones(width).double(), atol=1e-6)
    assert torch.allclose(found.forward @ found.inverse, torch.eye(width).double(), atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 24), st.integers(0, 99))
def test_evening_out_is_a_rotation(width, seed):
    given_ = covariance(steep(width), seed)
    turned = evened(torch.eye(width).double(), given_)
    assert torch.allclose(turned @ turned.T, torch.eye(width).double(), atol=1e-10)
    spread = (turned @ given_ @ turned.T).diagonal()
    assert torch.allclose(spread, spread.mean().expand(width), rtol=1e-6)


def test_features_themselves():
    """On rows, in fp32 as the losses have them: variance 1 +- 2 %, round trip below 1e-5 of the spread."""
    generator = torch.Generator().manual_seed(1)
    mix = (rotation(64, 2) * steep(64).sqrt()).float()
    rows = torch.randn(20000, 64, generator=generator) @ mix.T + 30
    found = phi_s(torch.cov(rows.double().T, correction=0))
    mean = rows.double().mean(0).float()
    out = (rows - mean) @ found.forward.float().T
    assert ((out.var(0, unbiased=False) - 1).abs() < 0.02).all() and out.mean(0).abs().max() < 1e-3
    back = out @ found.inverse.float().T + mean
    assert (back - rows).abs().max() / rows.std() < 1e-5


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([5.0, 3.0, 2.0, 1.0, 0.25, 0.0]), min_size=4, max_size=16),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_eigenvectors_depend_on_the_matrix_alone(values, seed, noise):
    """Equal eigenvalues or not: rounding does not turn the basis."""
    given_ = covariance(torch.tensor(values) + 1e-3, seed)
    jitter = torch.randn(given_.shape, generator=torch.Generator().manual_seed(noise)).double() * 1e-14
    first, second = eigenbasis(given_), eigenbasis(given_ + jitter + jitter.T)
    assert first.groups == second.groups
    assert torch.allclose(first.vectors, second.vectors, atol=1e-6)
    width = len(values)
    assert torch.allclose(first.vectors.T @ first.vectors, torch.eye(width).double(), atol=1e-10)
    rebuilt = (first.vectors * first.values) @ first.vectors.T
    assert torch.allclose(rebuilt, given_, atol=1e-9)
    single = [g.start for g in first.groups if g.stop - g.start == 1]
    for i in single:
        vector = first.vectors[:, i]
        assert vector[vector.abs().argmax()] > 0 or vector.abs().sort().values.diff()[-1] < 1e-5


def test_one_eigenvalue_in_all_directions_gives_the_seeded_basis():
    first, second = eigenbasis(torch.eye(6)), eigenbasis(3 * torch.eye(6))
    assert first.groups == (slice(0, 6),) and torch.allclose(first.vectors, second.vectors)
    assert not torch.allclose(first.vectors.abs(), torch.eye(6).double(), atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(8)), st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_basis_is_matched_to_an_earlier_one(order, flips):
    vectors = rotation(8, 5)
    signs = torch.tensor([-1.0 if flip else 1.0 for flip in flips]).double()
    previous = vectors[:, list(order)] * signs
    found, turned = matched(vectors, previous)
    assert torch.equal(vectors[:, found] * turned, previous)


@pytest.mark.parametrize("width", [12, 30])
def test_a_refresh_stays_near(width):
    """Eigenvalues that change places do not shuffle the targets of a head that has learnt them."""
    values = torch.linspace(1, 3, width).double()
    later = values.clone()
    later[[3, 4]] = values[[4, 3]] + 0.01
    before, after = covariance(values), covariance(later)
    first = phi_s(before)
    near, far = phi_s(after, first.basis), phi_s(after)
    distance = [float((w.forward - first.forward).norm() / first.forward.norm()) for w in (near, far)]
    assert distance[0] < 0.25 and distance[0] < distance[1] / 2
    spread = near.forward @ after @ near.forward.T
    assert torch.allclose(spread.diagonal(), torch.ones(width).double(), atol=1e-6)


def test_a_teacher_that_says_one_thing_only():
    found = phi_s(torch.zeros(8, 8))
    assert torch.isfinite(found.forward).all() and torch.allclose(found.forward @ found.inverse, torch.eye(8).double())
