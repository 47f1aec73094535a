"""What was written of a quantized student, and the files beside its ONNX file."""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from radioplat.common.atomic_files import written_aside
from radioplat.errors import EngineError
from radioplat.exporting.qdq.insert import HALF_OPSET
from radioplat.exporting.qdq.lint import LintReport
from radioplat.exporting.qdq.ranges import FILE, Range, write_ranges
from radioplat.models.quantized.architecture import Quantization
from radioplat.models.quantized.fake_quantize import NumberFormat

LINT_FILE = "lint.json"
# A net that rounds is chaotic: a difference of 1e-6 in one layer is a whole step in a later one. So the files of
# quantized students are judged by the cosine of their features, at worst over images and outputs.
LEAST_COSINE = 0.98


@dataclass(frozen=True)
class QuantizedReport:
    """Beside an :class:`~radioplat.exporting.onnx.export.OnnxReport`.

    Attributes:
        formats: number formats in the file.
        cosine: of the features of the file and of torch, at worst over images and outputs.
        ranges: every scale; also in ``ranges.json`` beside the file.
        lint: what the linter says of the file; also in ``lint.json`` beside it.
    """

    formats: list[str]
    cosine: float
    ranges: list[Range]
    lint: LintReport


def write_beside(report: QuantizedReport, path: Path) -> None:
    """Write ``ranges.json`` and ``lint.json`` into the folder of ``path``."""
    write_ranges(report.ranges, path.with_name(FILE))
    with written_aside(path.with_name(LINT_FILE)) as aside:
        aside.write_text(json.dumps(report.lint.to_json(), indent=1))


def least_opset(formats: Iterable[NumberFormat], data_type: str, opset: int) -> int:
    """The lowest operator set, at least ``opset``, that holds these formats beside layers in ``data_type``."""
    needed = [format.row.least_opset for format in formats]
    return max(opset, HALF_OPSET if needed and data_type != "fp32" else 0, *needed)


def float_type(asked: str, formats: Sequence[NumberFormat]) -> str:
    """The type of the layers that are not quantized: ``int8`` and ``fp8``, which the checkpoint implies, say fp32."""
    return "fp32" if asked.strip().lower() in [format.value for format in formats] else asked


def check_half_scales(ranges: Sequence[Range], data_type: str) -> None:
    """Refuse scales that fp16 does not hold.

    Raises:
        EngineError: names the quantizer.
    """
    if data_type != "fp16":
        return
    for found in ranges:
        if not (found.scale > 6e-8).all() or not (found.scale < 65504).all():
            raise EngineError(
                f"the scale of {found.source} is {float(found.scale.min()):.2g}, which fp16 does not hold",
                where="export.data_type",
                hint="Use bf16 or fp32.",
            )


def student_floats(model: object) -> list[str]:
    """Patterns of the layers that a quantized student or detector says stay float; none where it does not say."""
    parts = _quantizations(model)
    return [pattern for prefix, how in parts for name in how.skipped for pattern in _uses(prefix + name)]


def student_weight_only(model: object) -> list[str]:
    """Patterns of the layers of a quantized student or detector whose weights alone are quantized."""
    return [
        pattern
        for prefix, how in _quantizations(model)
        for name, formats in how.layers.items()
        if formats.weights and not formats.activations
        for pattern in _uses(prefix + name)
    ]


def _quantizations(model: object) -> ItemsView[str, Quantization]:
    """What says which layers are quantized, each with what its names lack; nothing where the model does not say."""
    return getattr(getattr(model, "architecture", None), "quantizations", {}).items()


def _uses(name: str) -> tuple[str, str]:
    """A layer's node, and those of its further uses where others share it."""
    return name, f"{name}.[0-9]*"
