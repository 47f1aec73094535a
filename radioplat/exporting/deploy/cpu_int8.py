"""INT8 for CPUs: an fp32 graph quantized by onnxruntime's own tools, judged and timed on this machine.

Dynamic: weights are INT8, activations get their range anew from each input; linear layers alone. Static: convolutions
and linear layers between Q/DQ pairs, with ranges from real images. Weights are signed, per output channel. On ARM, and
on x86 with VNNI, activations may be signed or unsigned; on x86 without VNNI a sum of two products of unsigned and
signed bytes may overflow 16 bits, so weights then keep 7 bits (``reduce_range``).
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from radioplat.common.atomic_files import written_aside
from radioplat.errors import EngineError
from radioplat.exporting.qdq.graph import Graph, read_graph
from radioplat.exporting.qdq.layers import find_layers
from radioplat.exporting.qdq.mark import module_of
from radioplat.spec.schema.export import CpuQuantization, CpuTarget

FIELD = "export.cpu"
_HEADS = "heads."  # regressions: they stay float
_REPEATS = 5


@dataclass(frozen=True)
class CpuReport:
    """What was written for a CPU.

    Attributes:
        path: the INT8 file; ``<path>.json`` beside it holds this report.
        method, target: as asked.
        layers, quantized: convolutions and linear layers of the graph, and those of them in INT8.
        images: how many it was compared on; none of them was calibrated on, where there were enough.
        cosine: of the fp32 file's features and its, the mean over images, at worst over outputs.
        bytes, fp32_bytes: sizes.
        seconds, fp32_seconds: of a batch of one on this machine's CPU, the fastest of five.
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


def quantize_for_cpu(
    source: Path, path: Path, method: CpuQuantization, target: CpuTarget, batches: Sequence[np.ndarray]
) -> CpuReport:
    """Write the fp32 graph ``source`` as INT8 to ``path``.

    Args:
        batches: float32 ``[B, 3, H, W]`` in [0, 1]: the last one is compared on; static ranges come from the others,
            or from it where it is the only one.

    Raises:
        EngineError: there is nothing to quantize, or onnxruntime gives a reason.
    """
    model = read_graph(source)
    _check_has_layers(model, method)
    try:
        with written_aside(path) as aside, _quiet():
            if method is CpuQuantization.dynamic:
                _dynamic(source, aside)
            else:
                _static(model, aside, target, batches[:-1] or batches)
            onnx.checker.check_model(str(aside))
    except (RuntimeError, ValueError, AttributeError, onnx.checker.ValidationError) as error:
        reason = " ".join(str(error).split())[:300]
        raise EngineError(f"onnxruntime cannot quantize this graph: {reason}", where=FIELD) from error
    report = _judge(source, path, method, target, batches[-1])
    with written_aside(path.with_name(f"{path.name}.json")) as aside:
        aside.write_text(json.dumps({**asdict(report), "path": path.name}, indent=1))
    return report


def _check_has_layers(model: onnx.ModelProto, method: CpuQuantization) -> None:
    kinds = {layer.node.op_type for layer in find_layers(Graph(model))}
    if not kinds:
        raise EngineError("the graph has no convolution and no linear layer", where=FIELD)
    if method is CpuQuantization.dynamic and not kinds & {"MatMul", "Gemm"}:
        hint = "Take export.cpu=static."
        raise EngineError("the graph has convolutions alone, and dynamic is for linear layers", where=FIELD, hint=hint)


def _dynamic(source: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Per channel, a Gemm's scales lie along its inputs, which no kernel takes: per tensor is what runs everywhere.
    quantize_dynamic(source, path, op_types_to_quantize=["MatMul", "Gemm"], weight_type=QuantType.QInt8)


def _static(model: onnx.ModelProto, path: Path, target: CpuTarget, batches: Sequence[np.ndarray]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter([{model.graph.input[0].name: batch} for batch in batches])

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    signed = target is CpuTarget.arm
    layers = find_layers(Graph(model))
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
            nodes_to_quantize=[layer.name for layer in layers if not _is_head(layer.node)],
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": signed},
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the advice to rewrite the graph first: torch's exporter has done it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _is_head(node: onnx.NodeProto) -> bool:
    return (module_of(node) or node.name).startswith(_HEADS)


def _judge(source: Path, path: Path, method: CpuQuantization, target: CpuTarget, images: np.ndarray) -> CpuReport:
    sessions = [_session(file) for file in (source, path)]
    name = sessions[0].get_inputs()[0].name
    ours, theirs = (session.run(None, {name: images}) for session in reversed(sessions))
    one = images if isinstance(sessions[0].get_inputs()[0].shape[0], int) else images[:1]
    fp32_seconds, seconds = (_fastest(session, {name: one}) for session in sessions)
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
        seconds=seconds,
        fp32_seconds=fp32_seconds,
    )


def _count(model: onnx.ModelProto) -> int:
    integer = sum(node.op_type in ("MatMulInteger", "DynamicQuantizeMatMul") for node in model.graph.node)
    return integer + sum(layer.is_quantized for layer in find_layers(Graph(model)))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Mean over images."""
    x, y = (values.reshape(len(values), -1).astype(np.float64) for values in (a, b))
    return float(((x * y).sum(1) / np.maximum(np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1), 1e-30)).mean())


def _fastest(session, feed: dict[str, np.ndarray]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return min(times)


def _session(path: Path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
