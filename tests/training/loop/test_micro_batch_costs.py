"""From times of forwards, summed over ranks, follow how unlike ranks are, and later dealing."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.spec.loading.load import load_spec
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.loop.micro_batch_costs import LONGEST_LEAD, LOOK, MicroBatchCosts
from radioplat.training.watch.rank_context import RankContext

SMALL, LARGE = (64,), (128,)
SECONDS = {"64": 1.0, "128": 4.0}


def hook_of(
    by_cost: bool, in_slots: bool = False, stage: int = 1, on_cluster: bool = False
) -> tuple[MicroBatchCosts, MicroBatchSchedule, list]:
    """A hook of two ranks with four micro-batches a step, large ones first."""
    said: list[str] = []
    kinds = lambda first, last: [LARGE if n % 4 < 2 else SMALL for n in range(first, last)]  # noqa: E731
    schedule = MicroBatchSchedule(4, 2, kinds, in_slots, by_cost=by_cost)
    spec = load_spec(None, [f"train.zero_stage={stage}"])
    context = RankContext(0, 2, torch.device("cpu"), on_cluster)
    return MicroBatchCosts(spec, context, schedule, lambda line, warns: said.append(line)), schedule, said


def record_of(step: int, took: tuple[float, float], usual: tuple[float, float]) -> StepRecord:
    """The record of a step whose ranks took so long for two micro-batches of each kind."""
    record = StepRecord(step, 0.1)
    sums = {f"took/{rank}": took[rank] for rank in range(2)} | {f"usual/{rank}": usual[rank] for rank in range(2)}
    for name, share in (("forward", 0.25), ("whole", 1.0)):
        sums |= {f"{name}/{kind}": 2 * share * value for kind, value in SECONDS.items()}
        sums |= {f"{name}s/{kind}": 2.0 for kind in SECONDS}
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
    assert costs.slowness[0] == 1.0 and costs.slowness[1] == pytest.approx(2.0, abs=0.1)
    assert schedule.costs_at(change) == costs, "known at once: no second change"
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


def step_of(hook: MicroBatchCosts, sizes: str, before: float = 0.0) -> dict[str, float]:
    """What the hook measures of a step of the first rank: 0.02 s a forward, and twice as much a backward."""
    hook.begin_step(0)
    for place, number in enumerate(sizes):
        batch = SimpleNamespace(micro_batch="LLSS".index("L" if number == "L" else "S"))
        time.sleep(before)
        hook.begin_micro_batch(0, batch)
        time.sleep(0.02)
        hook.losses(0, batch, {}, last=place == len(sizes) - 1)
        time.sleep(0.04)
        hook.end_micro_batch(0, batch)
    hook.begin_step(1)
    return hook.sums()


def test_the_last_micro_batch_of_a_step_is_measured_by_its_forward_alone():
    found = step_of(hook_of(True)[0], "LS", before=0.1)
    assert found["whole/128"] == pytest.approx(0.16, rel=0.3) and "whole/64" not in found, "with the teacher's time"
    assert found["forward/128"] == pytest.approx(0.12, rel=0.3) == found["forward/64"]
    with_slots = step_of(hook_of(True, in_slots=True, stage=2)[0], "LS")
    assert not any(name.startswith("whole") for name in with_slots) and with_slots["forwards/128"] == 1


def test_teachers_in_other_processes_are_waited_for_and_cost_nothing():
    hook, _, _ = hook_of(True, on_cluster=True)
    assert step_of(hook, "LS", before=0.1)["forward/128"] == pytest.approx(0.02, rel=0.5)


def test_a_kind_that_is_always_the_last_costs_what_its_forward_suggests():
    hook, _, _ = hook_of(True)
    record = record_of(1, (5.0, 5.0), (5.0, 5.0))
    del record.sums["dealing/whole/128"], record.sums["dealing/wholes/128"]
    hook.after_step(record)
    assert hook.state_dict()["micro_batch_seconds"] == pytest.approx(SECONDS)
    again, _, _ = hook_of(True)
    again.load_state_dict(hook.state_dict())
    assert again.state_dict() == hook.state_dict()
