"""Encoders: functions from uint8 images to features, for any kind of model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.teachers.base.teacher import FrozenTeacher

Encoder = Callable[[torch.Tensor], Features]  # uint8 [B, 3, H, W] -> Features, fp32

_BOTH = frozenset({"summary", "spatial"})


def student_encoder(student: Student) -> Encoder:
    """Return the student's backbone in evaluation mode and its own precision; with ``logits`` of a classifier."""
    student = student.eval()
    wanted = _BOTH | {"logits"} if student.architecture.num_classes else _BOTH
    device = next(student.parameters()).device

    @torch.inference_mode()
    def encode(images: torch.Tensor) -> Features:
        return student(images.to(device), wanted).map(lambda t: t.float())

    return encode


def teacher_encoder(teacher: FrozenTeacher) -> Encoder:
    """Return an encoder of a frozen teacher's raw features."""

    def encode(images: torch.Tensor) -> Features:
        return teacher(images, _BOTH).map(lambda t: t.float())

    return encode
