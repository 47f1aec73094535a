"""The kinds of models that this package trains, prunes, quantizes and exports."""

from __future__ import annotations

import enum


class ModelKind(enum.StrEnum):
    """What a :class:`~radioplat.models.vision_model.VisionModel` is."""

    student = "student"
    detector = "detector"
