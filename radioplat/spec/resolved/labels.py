"""Labels in addition to teachers: their weight, and whether the student has a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.schema.distill import DistillConfig, LabelForm
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.root import Spec


def label_weight(config: DistillConfig, teachers: Sequence[ResolvedTeacher]) -> float:
    """Return the factor of the cross-entropy with labels: alpha, or with TAO's form 1 - sum of loss_lambda."""
    if config.label_form is LabelForm.tao:
        return 1 - sum(teacher.loss_lambda for teacher in teachers)
    return config.alpha


def classifies(spec: Spec) -> bool:
    """Return True if the student has a classifier of ``dataset.num_classes``, trained by labels or class scores."""
    if spec.dataset.num_classes < 1 or spec.model.task is ModelTask.detection:
        return False
    teachers = resolve_teachers(spec)
    scored = any("logits" in teacher.wanted for teacher in teachers)
    return scored or label_weight(spec.distill, teachers) > 0
