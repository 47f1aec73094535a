"""Report of an exported quantized student, and the files written with its ONNX file."""

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
from radioplat.models.quantized.architecture import NOT_CALLED, Quantization
from radioplat.models.quantized.fake_quantize import NumberFormat

LINT_FILE = "lint.json"
# Rounding amplifies differences: 1e-6 in one layer can be a whole quantization step in a later one. So files of
# quantized students are checked by the cosine of their features, the minimum over images and outputs.
LEAST_COSINE = 0.98


@dataclass(frozen=True)
class QuantizedReport:
    """Part of an :class:`~radioplat.exporting.onnx.export.OnnxReport` for quantized students.

    Attributes:
        formats: number formats in the file.
        cosine: of the features of the file and of torch, the minimum over images and outputs.
        ranges: all scales; also in ``ranges.json``.
        lint: result of the linter; also in ``lint.json``.
        images: number of images that the cosine is the minimum of.
        on_noise: whether they are noise, because there were no calibration images.
    """

    formats: list[str]
    cosine: float
    ranges: list[Range]
    lint: LintReport
    images: int = 0
    on_noise: bool = False


def write_report(report: QuantizedReport, path: Path) -> None:
    """Write ``ranges.json`` and ``lint.json``, with what the cosine was, into the folder of ``path``."""
    write_ranges(report.ranges, path.with_name(FILE))
    with written_aside(path.with_name(LINT_FILE)) as aside:
        judged = {"cosine": report.cosine, "images": report.images, "on_noise": report.on_noise}
        aside.write_text(json.dumps({**judged, **report.lint.to_json()}, indent=1))


def least_opset(formats: Iterable[NumberFormat], data_type: str, opset: int) -> int:
    """Return the lowest operator set, at least ``opset``, with these formats and layers in ``data_type``."""
    needed = [format.row.least_opset for format in formats]
    return max(opset, HALF_OPSET if needed and data_type != "fp32" else 0, *needed)


def check_half_scales(ranges: Sequence[Range], data_type: str) -> None:
    """Refuse scales that fp16 cannot represent.

    Raises:
        EngineError: with the name of the quantizer.
    """
    if data_type != "fp16":
        return
    for each in ranges:
        if not (each.scale > 6e-8).all() or not (each.scale < 65504).all():
            raise EngineError(
                f"the scale of {each.source} is {float(each.scale.min()):.2g}, which fp16 cannot represent",
                where="export.data_type",
                hint="Use bf16 or fp32.",
            )


def student_floats(model: object) -> list[str]:
    """Return patterns of the layers of a quantized student or detector that are in floats; none for other models."""
    parts = _quantizations(model)
    names = [(prefix + name, why) for prefix, how in parts for name, why in how.skipped.items()]
    # A weight that a module reads without calling the layer is multiplied under the name of that module.
    names += [(name.rpartition(".")[0], why) for name, why in names if why == NOT_CALLED]
    return [pattern for name, _ in names for pattern in _uses(name)]


def student_weight_only(model: object) -> list[str]:
    """Return patterns of the layers of a quantized student or detector with quantized weights only."""
    return [
        pattern
        for prefix, how in _quantizations(model)
        for name, formats in how.layers.items()
        if formats.weights and not formats.activations
        for pattern in _uses(prefix + name)
    ]


def _quantizations(model: object) -> ItemsView[str, Quantization]:
    """Return the quantizations of a model's parts by the prefix of their layers' names; none for other models."""
    return getattr(getattr(model, "architecture", None), "quantizations", {}).items()


def _uses(name: str) -> tuple[str, str]:
    """Return patterns of a layer's node, and of its further calls if it is shared."""
    return name, f"{name}.[0-9]*"
