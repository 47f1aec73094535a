"""Measure target transforms over a list of micro-batches, as a run's first pass does."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from radioplat.data.batch import Batch
from radioplat.losses.target_transforms.moments import Moments
from radioplat.models.student.student import Student
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.client import Pending
from radioplat.teachers.serving.transport import unpack
from radioplat.training.targets.transforms import Key, TargetSums


def fit_target_norm(
    student: Student,
    teachers: list[ResolvedTeacher],
    fed: Iterable[tuple[Batch, dict[str, Pending]]],
    device: torch.device,
    full: bool = False,
) -> dict[Key, Moments]:
    """Set the transforms measured over the ``fed`` batches of all ranks; return the moments."""
    sums = TargetSums(student, teachers, device, full)
    for batch, answers in fed:
        sums.add(batch, {name: unpack(answer()) for name, answer in answers.items()})
    return {key: measured.moments() for key, measured in sums.finish().items()}
