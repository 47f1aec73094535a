"""Metrics of a student for gates and objectives: the task ``evaluate`` without other metrics."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from radioplat.spec.checks.tasks.training_task import training_task
from radioplat.spec.schema.evaluate import MetricName
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluate import evaluate


def gate_metric(spec: Spec) -> str:
    """Return the name of ``compress.gates.metric``; by default fidelity, for detectors mAP."""
    return (spec.compress.gates.metric or training_task(spec).gate_metric).short_name


def gate_spec(spec: Spec) -> Spec:
    """Return the spec by which the gates of a chain measure, see :func:`measuring_spec`."""
    own = spec.compress.gates.metric
    return measuring_spec(spec, [own] if own else [])


def measuring_spec(spec: Spec, metrics: Sequence[MetricName] = ()) -> Spec:
    """Derive the spec for :func:`measure`: images of ``dataset.val_dataset``, even if there is a test split.

    Args:
        metrics: metrics that are needed; users' own ones among them are measured.
    """
    derived = copy.deepcopy(spec)
    derived.dataset.index_dir = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    derived.evaluate = spec.evaluate.without_options()
    derived.evaluate.metrics = [metric.value for metric in metrics if metric.is_own]
    derived.train.trackers = []
    return derived


def measure(spec: Spec, student: Path, folder: Path) -> dict[str, float]:
    """Evaluate ``student`` (a checkpoint folder) and return every metric that can be measured, by name.

    Args:
        spec: of :func:`measuring_spec`.
        folder: where the evaluation writes.

    Raises:
        RadioplatError: as :func:`radioplat.tasks.evaluate.evaluate.evaluate`.
    """
    derived = copy.deepcopy(spec)
    derived.results_dir, derived.evaluate.checkpoint = str(folder), str(student)
    return evaluate(derived).metrics
