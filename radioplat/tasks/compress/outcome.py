"""Result of a finished stage: path, size and cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radioplat.compression.cost import cost_of
from radioplat.models.quantized.quantizer import count_scales
from radioplat.models.vision_model import open_model, weight_files


@dataclass(frozen=True)
class Outcome:
    """The result of a stage.

    Attributes:
        path: a checkpoint folder, or a file.
        bytes: size of a checkpoint's weight files, or of the file.
        params, macs: of the backbone without quantizers' scales, for one image; None unless a student was written.
        metrics: named as in ``compress.gates.metric``; empty unless the stage is an evaluation.
        facts: further values that the task reported.
    """

    path: str
    bytes: int
    params: int | None = None
    macs: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def student_outcome(path: Path, facts: dict[str, Any] | None = None) -> Outcome:
    """Measure the size and cost of a student or detector.

    Args:
        path: a checkpoint folder, or the file of ``export.format: safetensors``.

    Raises:
        WeightsError: it cannot be read.
    """
    model = open_model(path)
    cost = cost_of(model.backbone, model.architecture.img_size)
    size = sum(file.stat().st_size for file in weight_files(path))
    params = cost.params - count_scales(model.backbone)
    return Outcome(str(path), size, params, cost.macs, facts=facts or {})
