"""`train.trackers` chooses the trackers of a run; TAO's switches hold where it is unset."""

from __future__ import annotations

import pytest

from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.train import Tracker
from radioplat.tasks.evaluate.gate_metrics import measuring_spec

TAO = ("wandb.enable=true", "train.tensorboard.enabled=true")


@pytest.mark.parametrize(
    ("fields", "trackers"),
    [
        ((), set()),
        (("train.trackers=[wandb]",), {"wandb"}),
        (("train.trackers=[wandb,tensorboard]",), {"wandb", "tensorboard"}),
        (TAO[:1], {"wandb"}),
        (TAO, {"wandb", "tensorboard"}),
        ((*TAO, "train.trackers=[tensorboard]"), {"tensorboard"}),
        ((*TAO, "train.trackers=[]"), set()),
    ],
)
def test_what_records_a_run(fields, trackers):
    spec = load_spec(None, fields)
    for one in (spec, load_spec(spec)):
        assert {tracker.value for tracker in Tracker if one.tracked_by(tracker)} == trackers
    assert to_yaml(load_spec(spec)) == to_yaml(spec)
    assert not measuring_spec(spec).tracked_by(Tracker.wandb), "a gate's evaluation is not a run of its own"


@pytest.mark.parametrize(
    ("field", "near"),
    [
        ("train.trackers=[wandb, tensorbord]", "tensorboard"),
        ("train.trackers=[wandB2]", "wandb"),
        ("train.precision=bfloat16", "bf16"),
        ("distill.loss_type=BALANCE", "BALANCED"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest(field, near):
    with pytest.raises(SpecError) as error:
        load_spec(None, [field])
    (problem,) = error.value.problems
    assert problem.hint == f"Did you mean {near}?" and problem.where.startswith(field.partition("=")[0])


def test_event_files_that_wandb_stores_need_their_tracker():
    fields = ["wandb.sync_tensorboard=true", "train.trackers=[wandb]"]
    assert "wandb.sync_tensorboard" in [problem.where for problem in check(load_spec(None, fields), "distill")]
    fields[1] = "train.trackers=[wandb, tensorboard]"
    assert "wandb.sync_tensorboard" not in [problem.where for problem in check(load_spec(None, fields), "distill")]
