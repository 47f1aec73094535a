"""The scales of a quantized graph as a table: ``ranges.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radioplat.common.atomic_files import written_aside
from radioplat.models.quantized.fake_quantize import NumberFormat

FILE = "ranges.json"


@dataclass(frozen=True)
class Range:
    """Scale and format of one rounded tensor.

    Attributes:
        tensor: its name in the graph before rounding, also in the graph without Q/DQ.
        format: ``int8``, ``int4`` or ``fp8``.
        scale: fp32, one number ``[]``, or ``[channels]``; for blocks of a matrix with one side divided by their size.
        axis: axis of several scales; -1 for a single one.
        source: the quantizer that it is from, or how it was measured.
        is_weight: whether the tensor is a weight.
    """

    tensor: str
    format: str
    scale: np.ndarray
    axis: int
    source: str
    is_weight: bool = False

    @property
    def amax(self) -> np.ndarray:
        """The largest magnitude that is not clipped."""
        return self.scale * np.float32(NumberFormat(self.format).highest)

    def to_json(self) -> dict:
        """Return the row of ``ranges.json``."""
        scale, amax = (values.tolist() for values in (self.scale, self.amax))
        kind = "weight" if self.is_weight else "activation"
        numbers = {"amax": amax, "scale": scale, "axis": self.axis}
        return {"tensor": self.tensor, **numbers, "source": self.source, "format": self.format, "kind": kind}


def write_ranges(ranges: Sequence[Range], path: Path) -> Path:
    """Write ``ranges`` as a JSON list, one line for each, of {tensor, amax, scale, axis, source, format, kind}."""
    with written_aside(path) as aside:
        lines = ",\n".join(json.dumps(each.to_json()) for each in ranges)
        aside.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return path


def activation_scales(ranges: Sequence[Range]) -> dict[str, float]:
    """Return the scale of each activation; the largest, which clips nothing, if a tensor has several."""
    scales: dict[str, float] = {}
    for each in ranges:
        if not each.is_weight:
            scales[each.tensor] = max(float(each.scale), scales.get(each.tensor, 0.0))
    return scales
