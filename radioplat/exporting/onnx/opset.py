"""The operator set of an ONNX file, and whether a version of TensorRT reads its types."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from radioplat.errors import EngineError
from radioplat.exporting.onnx.lower_opset import TRACED
from radioplat.exporting.qdq.report import least_opset
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.spec.resolved.number_formats import DATA_TYPES
from radioplat.spec.resolved.tensorrt_version import LOWEST_OPSET, newest_opset, parse_version

NEWEST = (99, 0, 0)  # TensorRT without a version
_FIRST_STORED = 10  # that reads quantized weights
_FIELD = "export.tensorrt_version"


def choose_opset(
    requested: int | None, data_type: str, formats: Sequence[NumberFormat], tensorrt_version: str | None
) -> tuple[int, list[str]]:
    """Return the operator set of a file in ``data_type`` with these ``formats`` of Q/DQ, and notes on deviations.

    Args:
        requested: None for 18, or as needed.
        tensorrt_version: version that must support the file; None for the newest.

    Raises:
        EngineError: the target supports no operator set for the file, or not the requested one.
    """
    lowest = max(LOWEST_OPSET, DATA_TYPES[data_type].least_opset)
    oldest, newest = least_opset(formats, data_type, lowest), onnx.defs.onnx_opset_version()
    kinds = ", ".join([data_type, *(format.value for format in formats)])
    if version := parse_version(tensorrt_version or ""):
        read = newest_opset(version, [format.value for format in formats])
        if oldest > read:
            raise EngineError(
                f"TensorRT {tensorrt_version} reads ONNX up to operator set {read}, and {kinds} needs {oldest}",
                where="export.tensorrt_version",
                hint="Use a newer TensorRT, or another export.data_type or quantization.",
            )
        newest = min(newest, read)
    if requested is None:
        return max(oldest, min(TRACED, newest)), []
    if requested > newest:
        reader = f"TensorRT {tensorrt_version}" if version else f"onnx {onnx.__version__}"
        raise EngineError(
            f"operator set {requested} is unknown to {reader}",
            where="export.opset_version",
            hint=f"Valid: {oldest} to {newest}.",
        )
    if requested < oldest:
        return oldest, [f"export.opset_version {requested} was raised to {oldest}, the lowest for {kinds} here"]
    return requested, []


def require_readable(version: str | None, data_type: str, formats: Sequence[str], stored: bool) -> None:
    """Check that a version of TensorRT supports the types of a graph.

    Raises:
        EngineError: with the version that supports it.
    """
    major = ((parse_version(version) if version else None) or NEWEST)[0]
    for name in (*sorted(formats), data_type):
        if major < (needed := DATA_TYPES[name].first_tensorrt):
            library = f"TensorRT {version}" if version else "the newest known TensorRT"
            raise EngineError(f"{library} has no {name}", where=_FIELD, hint=f"Use {needed} or newer.")
    if formats and stored and major < _FIRST_STORED:
        raise EngineError(
            f"the parser of TensorRT {version} reads no quantized weights",
            where="export.stored_weights",
            hint="Set it to false: weights are then floats before Q/DQ.",
        )
