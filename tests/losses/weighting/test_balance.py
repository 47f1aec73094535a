"""Weights of teachers by their running losses, and UNIC's dropping."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.terms.hard_labels import label_loss, label_share
from radioplat.losses.weighting.balance import DECAY, TeacherBalance
from radioplat.losses.weighting.teacher_dropping import teacher_mask
from radioplat.spec.schema.distill import Balance

NAMES = ["a", "b", "c"]


def step(balance: TeacherBalance, **seen: list[tuple[float, float]]) -> None:
    """One optimizer step in which each teacher had these (mean, samples) micro-batches."""
    for name, micro_batches in seen.items():
        for mean, samples in micro_batches:
            balance.add_loss(name, torch.tensor(mean), torch.tensor(samples))
    balance.update(balance.sums())
    balance.clear()


@pytest.mark.parametrize("rule", list(Balance))
def test_before_anything_was_seen_all_are_one(rule):
    assert {name: float(f) for name, f in TeacherBalance(NAMES, rule).factors(NAMES).items()} == dict.fromkeys(NAMES, 1)


def test_the_running_mean_forgets():
    balance = TeacherBalance(NAMES, Balance.loss_scale)
    step(balance, a=[(1.0, 4.0), (3.0, 4.0)], b=[(5.0, 2.0)])
    step(balance, a=[(10.0, 8.0)], b=[(float("nan"), 0.0)])
    expected = (DECAY * 16 + 80) / (DECAY * 8 + 8)
    torch.testing.assert_close(balance.means[:2], torch.tensor([expected, 5.0], dtype=torch.float64))
    factors = balance.factors(NAMES)
    assert factors["a"].item() == pytest.approx(1 / expected) and factors["b"].item() == pytest.approx(0.2)
    assert factors["c"] == 1 and balance.means[2].isnan()


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3))
def test_both_rules_make_losses_equal_and_adaloss_keeps_the_sum_of_weights(means):
    found = {}
    for rule in (Balance.loss_scale, Balance.adaloss):
        balance = TeacherBalance(NAMES, rule)
        step(balance, **{name: [(mean, 7.0)] for name, mean in zip(NAMES, means, strict=True)})
        found[rule] = torch.stack([balance.factors(NAMES)[name] for name in NAMES])
        shares = found[rule] * torch.tensor(means)
        torch.testing.assert_close(shares, shares[:1].expand(3), rtol=1e-4, atol=0)
    torch.testing.assert_close(found[Balance.loss_scale] * torch.tensor(means), torch.ones(3), rtol=1e-4, atol=0)
    assert found[Balance.adaloss].sum().item() == pytest.approx(3, rel=1e-4)


def test_adaloss_waits_for_all_and_leaves_out_who_is_not_heard():
    balance = TeacherBalance(NAMES, Balance.adaloss)
    step(balance, a=[(1.0, 2.0)], b=[(3.0, 2.0)])
    assert all(value == 1 for value in balance.factors(NAMES).values())
    found = balance.factors(["a", "b"])
    assert found["a"].item() == pytest.approx(1.5) and found["b"].item() == pytest.approx(0.5)


def test_fixed_keeps_nothing():
    balance = TeacherBalance(NAMES, Balance.fixed)
    step(balance, a=[(5.0, 2.0)])
    assert not list(balance.buffers()) and balance.factors(["a"]) == {"a": 1.0}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.floats(0, 1), st.integers(0, 999))
def test_the_worst_teacher_of_an_image_always_counts(teachers, images, probability, seed):
    torch.manual_seed(seed)
    losses = torch.randn(teachers, images)
    found = teacher_mask(losses, probability)
    assert set(found.unique().tolist()) <= {0.0, 1.0}
    assert (found.gather(0, losses.argmax(0, keepdim=True)) == 1).all()
    if probability == 0:
        assert found.all()
    if probability == 1:
        assert (found.sum(0) == 1).all()


def test_others_are_dropped_with_the_probability_each_by_itself():
    torch.manual_seed(0)
    losses = torch.tensor([[3.0], [2.0], [1.0]]).expand(3, 40_000)
    found = teacher_mask(losses, 0.3)
    assert found[0].all()
    torch.testing.assert_close(found[1:].mean(1), torch.full((2,), 0.7), atol=0.01, rtol=0)
    assert (found[1] * found[2]).mean().item() == pytest.approx(0.49, abs=0.01)
    torch.manual_seed(0)
    assert torch.equal(teacher_mask(losses, 0.3), found), "the draw is the generator's"


def test_who_says_nothing_is_never_the_worst():
    losses = torch.tensor([[-torch.inf, 1.0], [0.0, -torch.inf]])
    assert torch.equal(teacher_mask(losses, 1.0), torch.tensor([[0.0, 1], [1, 0]]))


def test_labels():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    label = torch.tensor([2, -1, 0])
    p = logits.double().softmax(-1).log()
    torch.testing.assert_close(label_loss(logits, label).double(), torch.stack([-p[0, 2], 0 * p[1, 0], -p[2, 0]]))
    torch.testing.assert_close(label_share(label, 0.3), torch.tensor([0.3, 0.0, 0.3]))
