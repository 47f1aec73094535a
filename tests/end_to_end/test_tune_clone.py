"""PBT's exploit as a trial carries it out: from the checkpoint that Ray hands over, with another trial's weights."""

from __future__ import annotations

import pytest

from radioplat.tasks.tune.sweep import make_plan, trial_spec
from radioplat.tasks.tune.trial import _clone, _pointer
from radioplat.tasks.tune.trial_record import TrialRecord
from radioplat.tracking.status import read_status

LR, TEACHER = "train.optim.lr", "distill.teacher[0].loss_lambda"


def losses(folder):
    lines = read_status(folder / "distill" / "status.json")
    return {line["step"]: line["kpi"]["loss"] for line in lines if "max_step" in line}


def test_weights_are_those_of_the_other_trial(make_spec, distil, tmp_path):
    """A step's loss is taken before its update, and the samples are the same: it tells whose weights these are."""
    spec = make_spec(tmp_path)
    spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
    del spec["teachers"]["lite0"]
    space = {
        "parameters": {LR: {"choice": [1e-8, 3e-3]}},
        "objectives": [{"metric": "macs", "mode": "min"}],
        "scheduler": {"type": "pbt", "interval_steps": 3, "grace_steps": 3},
        "budget": {"trials": 2},
        "share_teachers": False,
    }
    plan = make_plan(spec, (), space)
    bad, good = TrialRecord(0, {LR: 1e-8}), TrialRecord(1, {LR: 3e-3})
    for record in (bad, good):
        distil(trial_spec(plan, record))
    home = plan.home
    own, theirs = losses(home / bad.name), losses(home / good.name)
    assert own[1] == pytest.approx(theirs[1], rel=1e-6) and own[4] != pytest.approx(theirs[4], rel=1e-3)

    good.step = 3
    (handed_over,) = (home / good.name / "distill").glob("model_epoch_*_step_00003")
    _clone(bad, {LR: 1e-3}, _pointer(good, handed_over))
    assert bad.clones == [[1, 3]] and bad.values == {LR: 1e-3}
    trail = distil(trial_spec(plan, bad))
    taken = losses(home / bad.name / "clone_1")
    assert min(taken) == 4 and max(taken) == 8
    assert taken[4] == pytest.approx(theirs[4], rel=1e-5)
    assert taken[5] != pytest.approx(theirs[5], rel=1e-7)  # its own learning rate from there
    assert f"goes on from {handed_over}" in " ".join(trail.lines)

    heavy = TrialRecord(2, {LR: 3e-3, TEACHER: 1.0})
    _clone(heavy, {LR: 3e-3, TEACHER: 2.0}, _pointer(good, handed_over))
    distil(trial_spec(plan, heavy))
    weighed = losses(home / heavy.name / "clone_1")
    assert min(weighed) == 4 and weighed[4] == pytest.approx(2 * theirs[4], rel=1e-5)  # the same terms, twice as dear

    _clone(bad, {LR: 2e-3}, _pointer(good, handed_over))  # Ray says the same again after a failure
    assert bad.clones == [[1, 3]] and bad.values == {LR: 1e-3}
    bad.step = 6
    _clone(bad, {LR: 2e-3}, _pointer(bad, handed_over))  # or names its own
    assert bad.clones == [[1, 3]]
