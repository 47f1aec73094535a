"""The training task for detectors, which learn from boxes and from teacher detectors."""

from __future__ import annotations

from pathlib import Path

from radioplat.common.ranks import Ranks
from radioplat.design.detector import detect_objective, start_detector
from radioplat.design.run import Run, has_held_out
from radioplat.design.student import prepare_student
from radioplat.design.tasks.task import Validation
from radioplat.evaluation.detection.measure_detector import measure_checkpoint
from radioplat.models.model_kind import ModelKind
from radioplat.objectives.objective import Objective


class Detect:
    """Train a detector; validation metrics are ``mAP``, ``mAP50``, ``mAP75``, ``voc/mAP``, and AP by class."""

    model_kind = ModelKind.detector

    def objective(self, run: Run) -> Objective:
        """Build the detector with its initial weights and its losses; equal on every rank."""
        assert run.detector is not None
        detector = start_detector(run.spec, run.detector, run.task)
        prepare_student(detector.student, run.spec, run.task)
        config, seed = run.spec.distill, run.spec.train.seed
        return detect_objective(detector, run.student_view, run.teachers, run.binding_widths, config, seed)

    def validates(self, run: Run) -> bool:
        """Return True if the spec names held-out images."""
        return has_held_out(run.spec)

    def validate(self, run: Run, checkpoint: Path, ranks: Ranks) -> Validation:
        """Measure mAP of ``checkpoint`` on the held-out images, with EMA weights if the run has them; see
        :class:`Task`."""
        result, faults = measure_checkpoint(run.spec, checkpoint, run.spec.train.enable_ema, ranks)
        return Validation(result.kpi(), [f"annotations of held-out images: {faults}"])
