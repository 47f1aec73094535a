"""Sums of features: closed forms, whatever the cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.target_transforms.moments import Moments, MomentSums


def features(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-2, 2, 5)
    return (torch.randn(40, 3, 2, 5, generator=generator) * scale + 7).bfloat16()


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(40)), st.integers(1, 4), st.integers(1, 11))
def test_the_order_and_the_cut_change_nothing(order, workers, size):
    given_, weight = features(), torch.ones(40)
    weight[[3, 17]] = 0
    given_[3] = float("nan")
    whole = Moments.empty(5, full=True)
    whole.add(given_, weight)
    parts = [MomentSums(5, full=True) for _ in range(workers)]
    for i, chosen in enumerate(torch.tensor(order).split(size)):
        parts[i % workers].add(given_[chosen], weight[chosen])
    total = MomentSums(5, full=True)
    for part in parts:
        total.merge(part)
    for found, expected in zip(total.moments().parts(), whole.parts(), strict=True):
        assert torch.equal(found, expected), "sums of products of bf16 numbers are exact in float64"


def test_closed_forms():
    given_ = features()
    rows = given_.double().flatten(0, 2)
    full, slim = (Moments.empty(5, full=kind) for kind in (True, False))
    for moments in (full, slim):
        moments.add(given_, torch.ones(40))
        torch.testing.assert_close(moments.mean(), rows.mean(0))
        torch.testing.assert_close(moments.variance(), rows.var(0, unbiased=False))
    torch.testing.assert_close(full.covariance(), torch.cov(rows.T, correction=0))
    assert full.full and not slim.full
    with pytest.raises(ValueError):
        slim.covariance()


def test_nothing_seen():
    moments = Moments.empty(3, full=True)
    moments.add(torch.full((2, 3), float("nan")), torch.zeros(2))
    assert not moments.count and not moments.mean().any() and not moments.covariance().any()


def test_many_rows_go_in_blocks():
    rows = torch.randn(9000, 4).bfloat16()
    moments = Moments.empty(4, full=True)
    moments.add(rows, torch.ones(9000))
    assert int(moments.count) == 9000
    torch.testing.assert_close(moments.outer, rows.double().T @ rows.double())


def test_sums_over_ranks_and_their_state():
    rows = torch.randn(90, 4)
    sums, again = MomentSums(4, full=True), MomentSums(4, full=True)
    sums.add(rows, torch.ones(90))
    doubled = sums.over_ranks(lambda part: part * 2)
    assert int(doubled.moments().count) == 180 and int(sums.moments().count) == 90
    for state in (sums.state(), sums.moments().parts()):
        again.load(state)
        for found, expected in zip(again.moments().parts(), sums.moments().parts(), strict=True):
            assert torch.equal(found, expected)
    sums.clear()
    assert not any(part.any() for part in sums.moments().parts())
