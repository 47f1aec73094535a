"""Sums of gradients whose bits do not depend on the order, and quanta that follow the gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.spec.resolved.reduction import MOST_MICRO_BATCHES
from radioplat.training.engine.exact_gradients import ExactGradients, GradientPart

PLACES = [(0, 3), (4, 2)]  # the fifth element lies between two tensors


def sums(micro_batches: int, dtype: torch.dtype = torch.float32) -> tuple[ExactGradients, GradientPart]:
    gradients = torch.zeros(6, dtype=dtype)
    means = gradients if dtype is torch.float32 else torch.zeros(6)
    part = GradientPart(gradients, means, PLACES)
    return ExactGradients([part], micro_batches, micro_batches), part


def step(exact: ExactGradients, part: GradientPart, gradients: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """The means, and how often the step had to be repeated."""
    for repeats in range(3):
        for gradient in gradients:
            for start, count in PLACES:
                part.gradients[start : start + count] = gradient[start : start + count]
            exact.add()
        if exact.finish():
            means = part.means.clone()
            exact.clear()
            return means, repeats
    raise AssertionError("three times are not enough")


def drawn(count: int, seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([scale, scale, scale, 0, scale * 1e-6, scale * 1e-6])
    return [torch.randn(6, generator=generator) * sizes for _ in range(count)]


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(7)), st.integers(0, 1000), st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_order_changes_nothing(order, seed, dtype):
    gradients = [each.to(dtype) for each in drawn(7, seed)]
    means, _ = step(*sums(7, dtype), gradients)
    mixed, _ = step(*sums(7, dtype), [gradients[i] for i in order])
    assert torch.equal(means, mixed)
    true = torch.stack([each.double() for each in gradients]).mean(0)
    sizes = torch.tensor([1, 1, 1, 1, 1e-6, 1e-6]) * torch.stack(gradients).abs().max()
    assert ((means - true).abs() <= sizes * 2e-7).all()


def test_a_quantum_that_does_not_fit_is_replaced_and_the_step_repeated():
    exact, part = sums(4)
    _, first = step(exact, part, drawn(4, 0))
    assert first == 1, "1e-6 of what was expected is too fine for the first quantum"
    assert step(exact, part, drawn(4, 1))[1] == 0
    assert step(exact, part, drawn(4, 2, scale=100))[1] == 0, "room for growth"
    assert step(exact, part, drawn(4, 3, scale=1e8))[1] == 1, "more than the room"
    assert step(exact, part, drawn(4, 4))[1] == 1, "so much smaller that fp32's bits would be lost"
    means, repeats = step(exact, part, drawn(4, 5))
    assert repeats == 0
    torch.testing.assert_close(means, torch.stack(drawn(4, 5)).mean(0), rtol=1e-5, atol=1e-12)


def test_tensors_without_gradient_keep_their_quantum():
    exact, part = sums(2)
    step(exact, part, drawn(2, 0))
    before = exact.largest.clone()
    assert step(exact, part, [torch.zeros(6)] * 2)[1] == 0
    assert torch.equal(exact.largest, before)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_not_repeated_and_not_remembered(number):
    exact, part = sums(2)
    step(exact, part, drawn(2, 0))
    before = exact.largest.clone()
    bad = drawn(2, 1)
    bad[1][0] = number
    means, repeats = step(exact, part, bad)
    assert repeats == 0 and not torch.isfinite(means[0])
    assert exact.largest[0] == before[0] and exact.largest[1] != before[1]


def test_as_many_micro_batches_as_a_spec_may_have_fit_after_one_repeat():
    assert step(*sums(MOST_MICRO_BATCHES), drawn(4, 0))[1] <= 1
    exact, part = sums(2 * MOST_MICRO_BATCHES)
    fits = []
    for _ in range(3):
        part.gradients[0] = 0.5  # the power of two itself: nothing is left of the bits for rounding
        exact.add()
        fits.append(exact.finish())
    assert fits == [False] * 3


def test_pieces_of_a_micro_batch_count_as_so_many():
    """Memory ran out, and each micro-batch comes in pieces that may be as large as a whole one."""
    exact, part = sums(2)
    step(exact, part, [torch.tensor([1.0, 0, 0, 0, 0, 0])] * 2)
    fits = {}
    for pieces in (1, 2048):
        for _ in range(2 * pieces):
            part.gradients[0] = 1023.0  # 10 bits of growth
            exact.add()
        fits[pieces] = exact.finish()
        exact.clear()
        exact.largest[0] = 1.0
    assert fits == {1: True, 2048: False}
