"""Sums of float64 tensors: equal bits in any order, and close to the exact sum of rationals."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.common.exact_sums import ExactSum, rounded

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False, allow_subnormal=False)


def added(numbers: list[float], workers: int) -> ExactSum:
    sums = [ExactSum(torch.zeros(1)) for _ in range(workers)]
    for i, number in enumerate(numbers):
        sums[i % workers].add(torch.tensor([number], dtype=torch.float64))
    for other in sums[1:]:
        sums[0].merge(other)
    return sums[0]


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBERS, max_size=30).flatmap(lambda n: st.tuples(st.just(n), st.permutations(n))), st.integers(1, 5))
def test_the_order_and_the_cut_change_nothing(lists, workers):
    numbers, mixed = lists
    whole, cut = added(numbers, 1), added(mixed, workers)
    assert torch.equal(whole.total(), cut.total()) and torch.equal(whole.state(), cut.state())
    exact = sum((Fraction(number) for number in numbers), Fraction(0))
    error = abs(Fraction(float(whole.total())) - exact)
    assert error <= abs(exact) * Fraction(1, 2**52) + len(numbers) * Fraction(1, 2**60)


def test_plain_float64_depends_on_the_order():
    numbers = [1e12, 1e-3, -1e12, 1e-3]
    assert sum(numbers) != sum(sorted(numbers))
    assert float(added(numbers, 1).total()) == pytest.approx(2e-3, abs=1e-15)


def test_many_additions_are_carried():
    total = ExactSum(torch.zeros(2))
    for _ in range(10_000):
        total.add(torch.tensor([0.1, -(2.0**30) - 2.0**-40], dtype=torch.float64))
    exact = 10_000 * (-(Fraction(2) ** 30) - Fraction(1, 2**40))
    assert float(total.total()[0]) == pytest.approx(1000, abs=1e-12)
    assert Fraction(float(total.total()[1])) == pytest.approx(exact, rel=2**-52)
    assert (total.state()[1:] >= 0).all()


def test_over_ranks_and_from_a_state():
    total = added([3.25, 1e-9], 2)
    assert float(total.over_ranks(lambda parts: parts * 3).total()) == 3 * (3.25 + 1e-9)
    again = ExactSum(torch.zeros(1))
    again.load(total.state())
    assert torch.equal(again.state(), total.state())
    again.load(torch.tensor([7.5]))
    assert float(again.total()) == 7.5


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(number):
    assert not torch.isfinite(added([1.0, number, 2.0], 1).total()).any()


def test_rounding_to_a_multiple():
    values = torch.tensor([0.24, 0.26, 0.125, 0.375, -0.9], dtype=torch.float64)
    assert rounded(values, -2).tolist() == [0.25, 0.25, 0.0, 0.5, -1.0]
