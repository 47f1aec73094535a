"""INT8 for CPUs: quantize an fp32 graph by onnxruntime, compare it with the original and time both on this machine.

Dynamic: weights are INT8, ranges of activations are computed for each input; linear layers only. Static: convolutions
and linear layers with Q/DQ pairs, with ranges from real images. Weights are signed, per output channel. On ARM, and on
x86 with VNNI, activations can be signed or unsigned; on x86 without VNNI a sum of two products of unsigned and signed
bytes can overflow 16 bits, so weights have 7 bits (``reduce_range``).
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from radioplat.common.atomic_files import written_aside
from radioplat.errors import EngineError
from radioplat.exporting.latency import measure_in_turn
from radioplat.exporting.made_of import record_sources
from radioplat.exporting.qdq.graph import Graph, name_of, read_graph
from radioplat.exporting.qdq.graph_layers import find_layers
from radioplat.exporting.qdq.int8_overflow import overflow_warning
from radioplat.exporting.qdq.mark import module_of
from radioplat.models.source import source_of
from radioplat.spec.schema.export import CpuQuantization, CpuTarget

FIELD = "export.cpu"
_HEADS = "heads."  # regressions, which stay float
_SECONDS = 1.0  # of measurement for each file, in turn


@dataclass(frozen=True)
class CpuReport:
    """Result of a quantization for CPUs.

    Attributes:
        path: the INT8 file; ``<path>.json`` is this report.
        method, target: settings of the quantization.
        layers, quantized: number of convolutions and linear layers of the graph, and of those in INT8.
        images: number of images of the comparison; not used for calibration, if there are enough.
        cosine: between the features of the fp32 file and this one, mean over images, minimum over outputs.
        bytes, fp32_bytes: sizes of both files.
        seconds, fp32_seconds: time of a batch of one on this machine's CPU, the median of calls in turn.
        warning: that its products overflow on this machine's CPU; empty if they do not.
    """

    path: Path
    method: str
    target: str
    layers: int
    quantized: int
    images: int
    cosine: float
    bytes: int
    fp32_bytes: int
    seconds: float
    fp32_seconds: float
    warning: str = ""


def quantize_for_cpu(
    source: Path, path: Path, method: CpuQuantization, target: CpuTarget, batches: Sequence[np.ndarray]
) -> CpuReport:
    """Write the fp32 graph ``source`` as INT8 to ``path``.

    Args:
        batches: float32 ``[B, 3, H, W]`` in [0, 1]: the last one is for the comparison, the others for static ranges;
            a single one is for both.

    Raises:
        EngineError: there is nothing to quantize, or onnxruntime cannot quantize the graph.
    """
    model = read_graph(source)
    _check_has_layers(model, method)
    try:
        with written_aside(path) as aside, _quiet():
            if method is CpuQuantization.dynamic:
                _dynamic(source, aside)
            else:
                _static(model, aside, target, batches[:-1] or batches)
            record_sources(aside, [source_of(source)])
            onnx.checker.check_model(str(aside))
    except (RuntimeError, ValueError, AttributeError, onnx.checker.ValidationError) as error:
        reason = " ".join(str(error).split())[:300]
        raise EngineError(f"onnxruntime cannot quantize this graph: {reason}", where=FIELD) from error
    report = _compare(source, path, method, target, batches[-1])
    with written_aside(path.with_name(f"{path.name}.json")) as aside:
        aside.write_text(json.dumps({**asdict(report), "path": path.name}, indent=1))
    return report


def _check_has_layers(model: onnx.ModelProto, method: CpuQuantization) -> None:
    kinds = {layer.node.op_type for layer in find_layers(Graph(model))}
    if not kinds:
        raise EngineError("the graph has no convolution and no linear layer", where=FIELD)
    if method is CpuQuantization.dynamic and not kinds & {"MatMul", "Gemm"}:
        hint = "Use export.cpu=static."
        raise EngineError("the graph has only convolutions, and dynamic is for linear layers", where=FIELD, hint=hint)


def _dynamic(source: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Per channel, the scales of a Gemm are along its inputs, for which there is no kernel; per tensor runs everywhere.
    quantize_dynamic(source, path, op_types_to_quantize=["MatMul", "Gemm"], weight_type=QuantType.QInt8)


def _static(model: onnx.ModelProto, path: Path, target: CpuTarget, batches: Sequence[np.ndarray]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter([{model.graph.input[0].name: batch} for batch in batches])

        def get_next(self) -> dict[str, Any] | None:
            return next(self._feeds, None)

    signed = target is CpuTarget.arm
    nodes = [layer.node for layer in find_layers(Graph(model))]
    names = [name_of(node) for node in nodes if not (module_of(node) or node.name).startswith(_HEADS)]
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        file = Path(scratch) / "float.onnx"
        onnx.save(model, str(file))
        quantize_static(
            file,
            path,
            Reader(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=target is CpuTarget.x86,
            op_types_to_quantize=["Conv", "MatMul", "Gemm"],
            nodes_to_quantize=names,
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": signed},
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the advice to preprocess the graph: torch's exporter has done it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _compare(source: Path, path: Path, method: CpuQuantization, target: CpuTarget, images: np.ndarray) -> CpuReport:
    sessions = [_session(file) for file in (source, path)]
    name = sessions[0].get_inputs()[0].name
    ours, theirs = (session.run(None, {name: images}) for session in reversed(sessions))
    one = images if isinstance(sessions[0].get_inputs()[0].shape[0], int) else images[:1]
    timers = {str(file): _timer(run, {name: one}) for file, run in zip((source, path), sessions, strict=True)}
    before, after = measure_in_turn(timers, _SECONDS).values()
    model = onnx.load(str(path))
    return CpuReport(
        path=path,
        method=method.value,
        target=target.value if method is CpuQuantization.static else "any",
        layers=len(find_layers(Graph(read_graph(source)))),
        quantized=_count(model),
        images=len(images),
        cosine=min(_cosine(a, b) for a, b in zip(ours, theirs, strict=True)),
        bytes=path.stat().st_size,
        fp32_bytes=sum(file.stat().st_size for file in source.parent.glob(f"{source.name}*") if file.suffix != ".json"),
        seconds=after.p50 / 1000,
        fp32_seconds=before.p50 / 1000,
        warning=overflow_warning(model),
    )


def _timer(session: Any, images: dict[str, np.ndarray]) -> Callable[[], float]:
    """Return a function that runs the images and returns its milliseconds."""

    def call() -> float:
        """Run them."""
        start = time.perf_counter()
        session.run(None, images)
        return 1000 * (time.perf_counter() - start)

    return call


def _count(model: onnx.ModelProto) -> int:
    integer = sum(node.op_type in ("MatMulInteger", "DynamicQuantizeMatMul") for node in model.graph.node)
    return integer + sum(layer.is_quantized for layer in find_layers(Graph(model)))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean over images."""
    x, y = (values.reshape(len(values), -1).astype(np.float64) for values in (a, b))
    return float(((x * y).sum(1) / np.maximum(np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1), 1e-30)).mean())


def _session(path: Path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
