"""Kinds of models that this package trains, prunes, quantizes and exports."""

from __future__ import annotations

import enum


class ModelKind(enum.StrEnum):
    """Kind of a :class:`~radioplat.models.vision_model.VisionModel`."""

    student = "student"
    detector = "detector"
