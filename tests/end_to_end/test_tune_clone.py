"""PBT's exploit as a trial carries it out: from the checkpoint that Ray hands over, with another trial's weights."""

from __future__ import annotations

from pathlib import Path

import pytest

import radioplat
from radioplat.tasks.tune.sweep import make_plan, trial_spec
from radioplat.tasks.tune.trial import _clone, _pointer
from radioplat.tasks.tune.trial_record import TrialRecord
from radioplat.tracking.follow import CheckpointEvent
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import examine

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
    _clone(home, bad, {LR: 1e-3}, _pointer(plan, good, handed_over))
    assert bad.clones == [[1, 3]] and bad.values == {LR: 1e-3}
    trail = distil(trial_spec(plan, bad))
    taken = losses(home / bad.name / "clone_1")
    assert min(taken) == 4 and max(taken) == 8
    assert taken[4] == pytest.approx(theirs[4], rel=1e-5)
    assert taken[5] != pytest.approx(theirs[5], rel=1e-7)  # its own learning rate from there
    assert f"goes on from {handed_over}" in " ".join(trail.lines)

    heavy = TrialRecord(2, {LR: 3e-3, TEACHER: 1.0})
    _clone(home, heavy, {LR: 3e-3, TEACHER: 2.0}, _pointer(plan, good, handed_over))
    distil(trial_spec(plan, heavy))
    weighed = losses(home / heavy.name / "clone_1")
    assert min(weighed) == 4 and weighed[4] == pytest.approx(2 * theirs[4], rel=1e-5)  # the same terms, twice as dear

    _clone(home, bad, {LR: 2e-3}, _pointer(plan, good, handed_over))  # Ray says the same again after a failure
    assert bad.clones == [[1, 3]] and bad.values == {LR: 1e-3}
    bad.step = 6
    _clone(home, bad, {LR: 2e-3}, _pointer(plan, bad, handed_over))  # or names its own
    assert bad.clones == [[1, 3]]


@pytest.mark.proof
def test_a_checkpoint_can_be_copied_once_the_mirror_has_newer_ones(make_spec, distil, tmp_path):
    """The other trial has gone on since, and keeps its newest checkpoint only; the events come when it has ended."""
    spec = make_spec(tmp_path)
    spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
    del spec["teachers"]["lite0"]
    spec["train"]["checkpoint_dir"] = str(tmp_path / "mirror")
    space = {
        "parameters": {LR: {"choice": [1e-8, 3e-3]}},
        "objectives": [{"metric": "macs", "mode": "min"}],
        "scheduler": {"type": "pbt", "interval_steps": 3, "grace_steps": 3},
        "budget": {"trials": 2},
        "share_teachers": False,
    }
    plan = make_plan(spec, (), space)
    bad, good = TrialRecord(0, {LR: 1e-8}), TrialRecord(1, {LR: 3e-3})
    pointers = {}

    def hand_over(event):
        """Each checkpoint when it is written, as a trial does."""
        if isinstance(event, CheckpointEvent):
            good.step = event.step
            pointers[event.step] = _pointer(plan, good, event.path)

    radioplat.distill(trial_spec(plan, good), callbacks=[hand_over])
    distil(trial_spec(plan, bad))
    assert sorted(pointers) == [3, 6, 8]
    assert len(list((plan.home / good.name / "distill").glob("model_epoch_*"))) == 1
    _clone(plan.home, bad, {LR: 1e-3}, pointers[3])
    distil(trial_spec(plan, bad))
    taken, theirs = losses(plan.home / bad.name / "clone_1"), losses(plan.home / good.name)
    assert min(taken) == 4 and taken[4] == pytest.approx(theirs[4], rel=1e-5)

    third = TrialRecord(2, {LR: 1e-3})
    _clone(plan.home, third, {LR: 1e-3}, pointers[8])  # which is still there, and may be removed at any time
    copied = Path(third.cloned_from)
    assert plan.home / third.name in copied.parents and examine(copied).global_step == 8
