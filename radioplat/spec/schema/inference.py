"""Spec section ``inference``."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.ranges import number


@dataclass
class InferenceConfig:
    """Spec section ``inference``: a folder of images to features."""

    checkpoint: str | None = None
    results_dir: str | None = None
    batch_size: int | None = number(None, at_least=1)
    images_dir: str | None = None
