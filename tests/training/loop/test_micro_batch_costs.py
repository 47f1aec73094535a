"""From times of forwards, summed over ranks, follow how unlike ranks are, and later dealing."""

from __future__ import annotations

import pytest
import torch

from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.spec.loading.load import load_spec
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.loop.micro_batch_costs import LONGEST_LEAD, LOOK, MicroBatchCosts
from radioplat.training.watch.rank_context import RankContext

SMALL, LARGE = (64,), (128,)
SECONDS = {"64": 1.0, "128": 4.0}


def hook_of(by_cost: bool, in_slots: bool = False, stage: int = 1) -> tuple[MicroBatchCosts, MicroBatchSchedule, list]:
    """A hook of two ranks with four micro-batches a step, large ones first."""
    said: list[str] = []
    kinds = lambda first, last: [LARGE if n % 4 < 2 else SMALL for n in range(first, last)]  # noqa: E731
    schedule = MicroBatchSchedule(4, 2, kinds, in_slots, by_cost=by_cost)
    spec = load_spec(None, [f"train.zero_stage={stage}"])
    context = RankContext(0, 2, torch.device("cpu"), False)
    return MicroBatchCosts(spec, context, schedule, lambda line, warns: said.append(line)), schedule, said


def record_of(step: int, took: tuple[float, float], usual: tuple[float, float]) -> StepRecord:
    """The record of a step whose ranks took so long for two micro-batches of each kind."""
    record = StepRecord(step, 0.1)
    sums = {f"took/{rank}": took[rank] for rank in range(2)} | {f"usual/{rank}": usual[rank] for rank in range(2)}
    sums |= {f"seconds/{kind}": 2 * value for kind, value in SECONDS.items()}
    sums |= {f"count/{kind}": 2.0 for kind in SECONDS}
    record.sums = {f"dealing/{name}": value for name, value in sums.items()}
    return record


@pytest.mark.parametrize("by_cost", [False, True])
def test_the_imbalance_is_the_slowest_rank_s_time_over_the_mean(by_cost):
    hook, _, _ = hook_of(by_cost)
    hook.after_step(record_of(0, (2.0, 6.0), (0.0, 0.0)))
    assert hook.figures() == {"imbalance": 1.5}


def test_where_ranks_wait_after_each_micro_batch_like_ones_beside_each_other_count():
    """Dealt evenly: large beside large and small beside small, on ranks of which one is half as fast."""
    hook, _, _ = hook_of(False, in_slots=True)
    assert hook.figures() == {}
    for step in range(1, 60):
        hook.after_step(record_of(step, (5.0, 10.0), (5.0, 5.0)))
    assert hook.figures()["imbalance"] == pytest.approx((8 + 2) / 7.5, rel=0.01)


def test_a_slow_rank_gets_fewer_within_fifty_steps_and_says_so():
    hook, schedule, said = hook_of(True)
    for step in range(50):
        hook.after_step(record_of(step, (5.0, 10.0), (5.0, 5.0)))
    change = schedule.next_change(0)
    assert change is not None and LOOK <= change <= LOOK + LONGEST_LEAD
    costs = schedule.costs_at(50)
    assert costs.slowness[0] == 1.0 and costs.slowness[1] > 1.5
    assert len(said) >= 1 and said[0].startswith(f"from step {change + 1} on micro-batches are dealt anew")
    own = [sum(costs.of(schedule.kinds_of(50)[n % 4]) for n in schedule.of_rank(50, rank)) for rank in range(2)]
    assert own[0] > own[1]


def test_even_dealing_is_measured_and_never_changed():
    hook, schedule, said = hook_of(False)
    for step in range(50):
        hook.after_step(record_of(step, (5.0, 10.0), (5.0, 5.0)))
    assert hook.state_dict() == {"micro_batch_seconds": pytest.approx(SECONDS)}
    assert schedule.next_change(0) is None and not said
    assert schedule.of_rank(50, 1) == [201, 203]


def test_stage_3_measures_nothing_since_its_forwards_wait_too():
    hook, _, _ = hook_of(False, in_slots=True, stage=3)
    hook.after_step(record_of(0, (2.0, 6.0), (1.0, 1.0)))
    assert hook.figures() == {} and hook.state_dict() == {}
