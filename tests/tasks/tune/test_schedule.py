"""Budgets, and schedulers that know the trials of earlier starts; Ray Tune's own classes."""

from __future__ import annotations

import dataclasses

import pytest

from radioplat.launch.preflight.preflight import Preflight
from radioplat.launch.preflight.workers import spot
from radioplat.quickstart.defaults import RADIO_VIT as SPEC
from radioplat.tasks.tune.schedule import Budget, DriverCallback, scheduler_of
from radioplat.tasks.tune.sweep import make_plan, trial_spec
from radioplat.tasks.tune.trial_record import State, TrialRecord, claim, read_trials

BASE = {
    "parameters": {"train.optim.lr": {"loguniform": [1e-4, 1e-2]}},
    "objectives": [{"metric": "fidelity"}],
    "budget": {"trials": 4},
}


@dataclasses.dataclass(frozen=True)
class Running:
    """What a scheduler looks at of a trial that runs."""

    trial_id: str


def plan_of(tmp_path, **change):
    prices = ["cluster.cpu_hour_price=2"]
    return make_plan(SPEC, [f"results_dir={tmp_path}", *prices], BASE | change)


def told(plan, number, state, values):
    record = TrialRecord(number, {"train.optim.lr": 1e-3}, state)
    record.write(plan.home)
    for step, value in values:
        record.add_report(plan.home, step, value)
    return record


@pytest.mark.parametrize(("spent", "over"), [(3500.0, ""), (3700.0, "budget.hours=1")])
def test_hours_are_those_of_all_starts(tmp_path, spent, over):
    budget = Budget(plan_of(tmp_path, budget={"trials": 4, "hours": 1}), spent)
    assert budget.stop_all() == bool(over) and budget.over == over
    assert not budget("any trial", {"step": 1})


def test_money_is_that_of_all_trials(tmp_path):
    plan = plan_of(tmp_path, budget={"trials": 4, "money": 5})
    for number, money in enumerate((2.0, 2.5)):
        TrialRecord(number, {}, State.done, money=money).write(plan.home)
    assert not Budget(plan, 0.0).stop_all()
    TrialRecord(2, {}, State.running, money=0.5).write(plan.home)
    budget = Budget(plan, 0.0)
    assert budget.stop_all() and budget.over == "budget.money=5"


@pytest.mark.parametrize(("value", "action"), [(0.9, "STOP"), (0.2, "CONTINUE")])
@pytest.mark.parametrize("kind", ["asha", "median"])
def test_trials_are_compared_with_those_of_earlier_starts(tmp_path, kind, value, action):
    plan = plan_of(tmp_path, scheduler={"type": kind, "grace_steps": 10, "reduction_factor": 2})
    told(plan, 0, State.done, [(10, 0.5), (20, 0.4)])
    told(plan, 1, State.stopped, [(10, 0.6), (20, 0.6)])
    told(plan, 2, State.running, [(10, 0.99)])  # goes on, under another name of Ray's
    scheduler, trial = scheduler_of(plan), Running("new")
    scheduler.set_search_properties(None, None)
    if kind == "asha":
        scheduler.on_trial_add(None, trial)
    assert scheduler.on_trial_result(None, trial, {"step": 10, "loss": value}) == action


def test_what_was_told_is_read_by_step_and_a_torn_line_left_out(tmp_path):
    plan = plan_of(tmp_path)
    record = told(plan, 0, State.running, [(10, 0.5), (20, 0.4), (10, 0.3)])
    with (plan.home / record.name / "told.jsonl").open("a") as file:
        file.write("[30, 0.")
    assert record.reports(plan.home) == [(10, 0.3), (20, 0.4)]
    assert TrialRecord(7, {}).reports(plan.home) == []


def test_pbt_changes_loss_weights_and_teachers_weights(tmp_path):
    varied = {
        "train.optim.lr": {"loguniform": [1e-4, 1e-2]},
        "distill.teacher[0].summary_loss_weight": {"uniform": [0.5, 2.0]},
        "distill.teacher[1].loss_lambda": {"choice": [0.5, 1.0, 2.0]},
    }
    plan = plan_of(tmp_path, parameters=varied, scheduler={"type": "pbt", "metric": "fidelity", "mode": "max"})
    assert set(scheduler_of(plan)._hyperparam_mutations["point"]["values"]) == set(varied)


def test_trials_that_are_cloned_keep_all_checkpoints_also_on_spot_nodes(tmp_path):
    """Another trial may copy any of them."""
    plan = plan_of(
        tmp_path, changes=["cluster.spot=true"], scheduler={"type": "pbt", "metric": "fidelity", "mode": "max"}
    )
    spec = trial_spec(plan, TrialRecord(0, {"train.optim.lr": 1e-3}))
    found = Preflight(spec, "distill", tmp_path)
    found.take(spot)
    assert found.spec.train.keep_last is None and found.spec.train.checkpoint_minutes is None


def test_all_trials_of_a_pass_end_with_it_and_no_others(tmp_path):
    plan = plan_of(tmp_path)
    for number, owner in enumerate(["s/t1/0", "s/t1/1", "s/t10/2", "s/t1", "other/t1/4"]):
        assert claim(plan.home, {"train.optim.lr": 1e-3}, owner, number).number == number, "a record each"
    DriverCallback(plan, "s", Budget(plan, 0.0)).on_trial_complete(0, [], Running("t1"))
    assert [r.number for r in read_trials(plan.home) if r.state is State.stopped] == [0, 1, 3]
