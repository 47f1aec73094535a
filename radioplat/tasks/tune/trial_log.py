"""The objectives of trials in their W&B runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Tracker
from radioplat.tasks.tune.trial_record import TrialRecord
from radioplat.tracking.weights_and_biases.session import WandbRun, end_service


def log_trials(trials: Sequence[tuple[Spec, TrialRecord]]) -> None:
    """Log the objectives of each trial in its W&B run, where its spec has W&B; the last thing that a process logs."""
    tracked = [(spec, record) for spec, record in trials if spec.tracked_by(Tracker.wandb)]
    for spec, record in tracked:
        values = {"trial": record.number, **record.values}
        with WandbRun(replace(spec.wandb, enable=True), spec.results_dir, values, job_type="trial") as run:
            run.log(record.step, {f"objective/{name}": value for name, value in record.metrics.items()})
    if tracked:
        end_service(tracked[0][0].wandb.finish_s)  # otherwise Ray kills it first
