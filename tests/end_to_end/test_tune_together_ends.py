"""Trials of one pass that ends before its last step: those without all steps have failed, each with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.errors import TrainingError
from radioplat.objectives.distill import DistillObjective
from radioplat.tasks.tune.sweep import make_plan, trial_spec
from radioplat.tasks.tune.together import _distilled
from radioplat.tasks.tune.trial_record import TrialRecord
from radioplat.training.checkpoints.checkpoint import newest

WIDTH = "model.backbone.kwargs.embed_dim"
LOST = "a teacher's pool is lost"


@pytest.mark.parametrize("last", [6, 9])  # the pass ends in step 6; or after the last one, 7
def test_trials_without_all_steps_have_failed(make_spec, tmp_path, monkeypatch, last):
    """The first trial diverges in step 3, and another error ends the pass, or none does."""
    forward = DistillObjective.forward

    def failing(self, batch):
        if self.step >= last:
            raise TrainingError(LOST)
        losses = forward(self, batch)
        bad = self.step >= 3 and self.student.architecture.kwargs["embed_dim"] == 24
        return {name: value * float("nan") for name, value in losses.items()} if bad else losses

    monkeypatch.setattr(DistillObjective, "forward", failing)
    saved = {"checkpoint_interval": 2, "checkpoint_interval_unit": "step", "non_finite": "fail"}
    spec = make_spec(tmp_path, {"model": {"backbone": {"kwargs": {"num_heads": 2}}}, "train": saved})
    space = {"parameters": {WIDTH: {"grid": [24, 48, 96]}}, "search": {"algorithm": "grid"}}
    plan = make_plan(spec, [], {"task": "distill", "objectives": [{"metric": "fidelity"}], **space})
    records = [TrialRecord(number, {WIDTH: width}) for number, width in enumerate((24, 48, 96))]
    specs = {record.name: trial_spec(plan, record) for record in records}
    reasons = _distilled(plan, specs, lambda event: None)
    steps = [newest(Path(own.results_dir) / "distill")[1].global_step for own in specs.values()]
    if last == 6:
        assert steps == [2, 6, 6]  # of eight
        assert reasons.keys() == specs.keys()
        assert "loss" in reasons["trial_0000"] and LOST in reasons["trial_0001"] and LOST in reasons["trial_0002"]
    else:
        assert steps == [2, 8, 8]
        assert reasons.keys() == {"trial_0000"}
