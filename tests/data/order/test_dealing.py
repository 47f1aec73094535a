"""Micro-batches are dealt to ranks by what they cost."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.order.dealing import Costs, deal_by_cost, deal_evenly, deal_in_slots, end_of
from radioplat.data.order.micro_batch_schedule import PADDING, MicroBatchSchedule

COSTS = st.lists(st.sampled_from([1.0, 2.0, 4.0, 9.0, 16.0]), min_size=1, max_size=8)
SLOWNESS = st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=1, max_size=3)


def best_end(costs: list[float], slowness: list[float]) -> float:
    """The earliest end of all ways to deal, by trying them."""
    ends = []
    for ranks in product(range(len(slowness)), repeat=len(costs)):
        loads = [0.0] * len(slowness)
        for cost, rank in zip(costs, ranks, strict=True):
            loads[rank] += cost * slowness[rank]
        ends.append(max(loads))
    return min(ends)


@given(COSTS, SLOWNESS)
def test_uneven_dealing_is_near_the_best_and_deals_each_once(costs, slowness):
    dealt = deal_by_cost(costs, slowness)
    assert sorted(n for own in dealt for n in own) == list(range(len(costs)))
    assert len(costs) < len(slowness) or all(dealt)
    if len(costs) >= 2 * len(slowness):  # else a slow rank has to take one
        assert end_of(dealt, costs, slowness, False) <= 1.35 * best_end(costs, slowness)


@given(COSTS, SLOWNESS)
def test_slots_have_equally_many_of_like_costs(costs, slowness):
    dealt = deal_in_slots(costs, slowness, PADDING)
    assert sorted(n for own in dealt for n in own if n != PADDING) == list(range(len(costs)))
    assert len({len(own) for own in dealt}) == 1
    alike = [1.0] * len(slowness)
    in_turn = [[*own, *[PADDING] * (-(-len(costs) // len(slowness)) - len(own))] for own in deal_evenly(
        len(costs), len(slowness)
    )]  # fmt: skip
    assert end_of(dealt, costs, alike, True) <= end_of(in_turn, costs, alike, True) + 1e-9


def test_a_rank_that_takes_twice_as_long_gets_half():
    dealt = deal_by_cost([1.0] * 9, [2.0, 1.0])
    assert [len(own) for own in dealt] == [3, 6]


@pytest.mark.parametrize("in_slots", [False, True])
def test_a_change_concerns_later_steps_alone(in_slots):
    schedule = MicroBatchSchedule(
        6, 2, lambda first, last: [(64 + 32 * (n % 3),) for n in range(first, last)], in_slots
    )
    before = [[schedule.of_rank(step, rank) for rank in range(2)] for step in range(8)]
    assert schedule.next_change(0) is None
    schedule.change(4, Costs(slowness=(4.0, 1.0)))
    after = [[schedule.of_rank(step, rank) for rank in range(2)] for step in range(8)]
    assert after[:4] == before[:4] and after[4:] != before[4:]
    assert schedule.next_change(3) == 4 and schedule.version_at(3) == 0 and schedule.version_at(4) == 1
    for step, ranks in enumerate(after):
        assert sorted(n for own in ranks for n in own) == list(range(6 * step, 6 * step + 6))


def test_costs_of_sizes_that_were_not_measured_follow_their_pixels():
    costs = Costs.measured({"64": 1.0, "128,96": 4.0})
    assert costs.of((64,)) == 1.0 and costs.of((256,)) == pytest.approx(16.0)
