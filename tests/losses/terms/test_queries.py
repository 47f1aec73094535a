"""Queries of two detectors are matched one to one, whatever their number and order."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.terms.queries import (
    Answers,
    Pairs,
    best_class_score,
    criterion_inputs,
    match_queries,
    select_queries,
)


def answers(queries: int, seed: int, batch: int = 2, classes: int = 3) -> Answers:
    draw = torch.Generator().manual_seed(seed)
    boxes = torch.rand(batch, queries, 4, generator=draw) * 0.4 + 0.2
    return Answers(torch.randn(batch, queries, classes, generator=draw), boxes)


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(6)), st.integers(3, 6), st.integers(0, 99))
def test_a_shuffled_copy_is_found_again(order, kept, seed):
    theirs = answers(6, seed)
    order = torch.tensor(order)[:kept]
    pairs = match_queries(Answers(theirs.logits[:, order], theirs.boxes[:, order]), theirs)
    back = torch.gather(order.expand(2, -1), 1, pairs.mine)
    assert torch.equal(back, pairs.theirs)
    for mine, their in zip(Answers(theirs.logits[:, order], theirs.boxes[:, order]), theirs, strict=True):
        assert torch.equal(select_queries(mine, pairs.mine), select_queries(their, pairs.theirs))


@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (4, 4)])
def test_no_other_matching_costs_less(counts):
    mine, theirs = answers(counts[0], 1, 1), answers(counts[1], 2, 1)
    pairs = match_queries(mine, theirs)
    fewer = min(counts)
    assert pairs.mine.shape == pairs.theirs.shape == (1, fewer)
    assert len(set(pairs.mine[0].tolist())) == len(set(pairs.theirs[0].tolist())) == fewer

    def cost(a: int, b: int) -> float:
        p, q = (said.logits[0, i].sigmoid() for said, i in ((mine, a), (theirs, b)))
        (x, y, w, h), (u, v, s, t) = mine.boxes[0, a].tolist(), theirs.boxes[0, b].tolist()
        wide = min(x + w / 2, u + s / 2) - max(x - w / 2, u - s / 2)
        high = min(y + h / 2, v + t / 2) - max(y - h / 2, v - t / 2)
        both = max(wide, 0) * max(high, 0)
        union = w * h + s * t - both
        hull = (max(x + w / 2, u + s / 2) - min(x - w / 2, u - s / 2)) * (
            max(y + h / 2, v + t / 2) - min(y - h / 2, v - t / 2)
        )
        l1 = abs(x - u) + abs(y - v) + abs(w - s) + abs(h - t)
        return float(2 * (p - q).abs().sum()) + 5 * l1 - 2 * (both / union - (hull - union) / hull)

    def total(mine_at, theirs_at) -> float:
        return sum(cost(a, b) for a, b in zip(mine_at, theirs_at, strict=True))

    if counts[0] <= counts[1]:
        least = min(total(range(fewer), order) for order in permutations(range(counts[1]), fewer))
    else:
        least = min(total(order, range(fewer)) for order in permutations(range(counts[0]), fewer))
    assert total(pairs.mine[0].tolist(), pairs.theirs[0].tolist()) == pytest.approx(least, abs=1e-4)


def test_what_is_no_number_is_matched_last_and_classes_must_agree():
    theirs = answers(4, 3, 1)
    mine = Answers(theirs.logits[:, :3].clone(), theirs.boxes[:, :3].clone())
    mine.logits[0, 1] = float("nan")
    pairs = match_queries(mine, theirs)
    matched = dict(zip(pairs.mine[0].tolist(), pairs.theirs[0].tolist(), strict=True))
    assert matched[0] == 0 and matched[2] == 2
    with pytest.raises(ValueError, match="3 classes cannot be matched with 5"):
        match_queries(mine, answers(4, 3, 1, classes=5))


def test_what_is_taken_has_its_gradient_and_sureness_none():
    values = torch.randn(1, 4, 2, requires_grad=True)
    select_queries(values, torch.tensor([[3, 1]])).sum().backward()
    assert values.grad[0].tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    logits = torch.tensor([[[0.0, 2.0], [-3.0, -1.0]]], requires_grad=True)
    sure = best_class_score(logits)
    assert not sure.requires_grad
    torch.testing.assert_close(sure, torch.tensor([[2.0, -1.0]]).sigmoid())


def test_boxes_count_by_how_sure_the_teacher_is_and_logits_alike():
    mine, theirs = answers(3, 1, 1), answers(4, 2, 1)
    pairs = Pairs(torch.tensor([[0, 2]]), torch.tensor([[3, 1]]))
    a, b, seen = criterion_inputs("pred_boxes", mine, theirs, pairs)
    assert torch.equal(a[0, :, 0], mine.boxes[0, [0, 2]]) and torch.equal(b[0, :, 0], theirs.boxes[0, [3, 1]])
    assert torch.equal(seen[0, :, 0], theirs.logits[0, [3, 1]].sigmoid().amax(-1))
    a, b, seen = criterion_inputs("pred_logits", mine, theirs, pairs)
    assert torch.equal(a[0, :, 0], mine.logits[0, [0, 2]]) and torch.equal(b[0, :, 0], theirs.logits[0, [3, 1]])
    assert torch.equal(seen, torch.ones(1, 2, 1))
