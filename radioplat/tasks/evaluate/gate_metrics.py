"""What a student is worth to a gate: the task ``evaluate`` on the validation split, less what no gate looks at."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from radioplat.models.vision_model import model_kind
from radioplat.spec.checks.training.detection import detects
from radioplat.spec.schema.compress import GateMetric
from radioplat.spec.schema.evaluate import (
    ChangeConfig,
    CorrespondenceConfig,
    LinearProbeConfig,
    SegmentationConfig,
    ZeroShotConfig,
)
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.detector import DetectorReport
from radioplat.tasks.evaluate.detectors import DetectorsReport
from radioplat.tasks.evaluate.evaluate import EvaluateResult, evaluate

TRAINED = "student"


def gate_metric(spec: Spec) -> GateMetric:
    """``compress.gates.metric``, or what stands for it where it is unset."""
    return spec.compress.gates.metric or (GateMetric.mAP if detects(spec) else GateMetric.fidelity)


def measuring_spec(spec: Spec) -> Spec:
    """``spec`` for :func:`measure`: ``dataset.val_dataset`` is what it judges on, whatever other splits there are."""
    derived = copy.deepcopy(spec)
    derived.dataset.index_dir = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    asked = derived.evaluate
    asked.results_dir, asked.baseline, asked.pictures, asked.cka_rows, asked.resolutions = None, False, 0, 0, []
    derived.wandb.enable = False
    asked.linear_probe, asked.segmentation = LinearProbeConfig(), SegmentationConfig()
    asked.change, asked.correspondence, asked.zero_shot = ChangeConfig(), CorrespondenceConfig(), ZeroShotConfig()
    return derived


def measure(spec: Spec, student: Path, folder: Path) -> dict[str, float]:
    """Every metric of :class:`GateMetric` that can be had of ``student`` (a checkpoint folder), by name.

    Args:
        spec: of :func:`measuring_spec`.
        folder: where the evaluation writes.

    Raises:
        RadioplatError: as :func:`radioplat.tasks.evaluate.evaluate.evaluate`.
    """
    derived = copy.deepcopy(spec)
    derived.results_dir, derived.evaluate.checkpoint = str(folder), str(student)
    return metrics_of(evaluate(derived))


def metrics_of(result: EvaluateResult | DetectorReport | DetectorsReport) -> dict[str, float]:
    """The figures of an evaluation that a gate can look at; of several models those of the last student, or of the
    last detector that is a checkpoint."""
    if isinstance(result, DetectorReport):
        return _finite({GateMetric.mAP: result.result.coco.map})
    if isinstance(result, DetectorsReport):
        ran = [row.result for row in result.models if row.result and model_kind(row.path)]
        return _finite({GateMetric.mAP: ran[-1].coco.map if ran else None})
    students = [row for row in result.models if row.params is not None]
    name = students[-1].name if students else TRAINED
    values = [v.centered for kinds in result.fidelity.get(name, {}).values() for v in kinds.values()]
    found = {
        GateMetric.fidelity: statistics.fmean(values) if values else None,
        GateMetric.knn: result.knn[name].top1 if name in result.knn else None,
        GateMetric.top1: students[-1].accuracy if students else result.accuracy,
    }
    return _finite(found)


def _finite(found: Mapping[GateMetric, float | None]) -> dict[str, float]:
    return {metric.value: value for metric, value in found.items() if value is not None and math.isfinite(value)}
