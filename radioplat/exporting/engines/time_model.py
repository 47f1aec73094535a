"""The latency of a student or detector as an engine on this machine, for budgets and sweeps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from radioplat.common.imports import require_extra
from radioplat.errors import EngineError
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.engines.latency import timer
from radioplat.exporting.engines.library import choose_backend
from radioplat.exporting.latency import measure_in_turn
from radioplat.models.quantized.quantizer import quantizers
from radioplat.spec.resolved.number_formats import engine_type
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

SECONDS = 0.5  # of measuring


def engine_seconds(model: Any, size: int, backend: EngineBackend = EngineBackend.auto) -> float:
    """Export ``model``, build an engine for one image, and return the median seconds of a call on this machine.

    Args:
        model: a student or detector.
        size: sides of the image in pixels.
        backend: auto: the fastest that runs here: TensorRT with a GPU, else OpenVINO, else onnxruntime.

    Raises:
        EngineError: it cannot be exported or built, or the engine does not run on this machine.
    """
    require_extra("onnx", "a latency, which is that of an engine,", "gen_trt_engine.backend")
    from radioplat.exporting.engines.build import build_engine
    from radioplat.exporting.engines.onnx_input import read_onnx
    from radioplat.exporting.onnx.export import export_in_halves, export_onnx

    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        export = export_in_halves if quantizers(model) else export_onnx
        report = export(model, Path(scratch) / "model.onnx", height=size, width=size, batch_size=1)
        formats = read_onnx(report.path).formats
        data_type = max(map(engine_type, formats)) if formats else report.data_type
        config = TensorRTConfig(data_type=data_type, min_batch_size=1, opt_batch_size=1, max_batch_size=1)
        engine = build_engine(report.path, Path(scratch) / "model.engine", config, backend=runnable(backend))
        if not engine.executed:
            hint = "Set gen_trt_engine.backend to openvino or onnxruntime to measure on this CPU."
            raise EngineError(f"the engine does not run here: {engine.execution['reason']}", where="latency", hint=hint)
        call, _ = timer(load_engine(engine.path), 1)
        return measure_in_turn({"own": call}, SECONDS)["own"].p50 / 1000


def runnable(backend: EngineBackend) -> EngineBackend:
    """Return a backend whose engines this machine runs, for ``auto``; others as they are."""
    if backend is not EngineBackend.auto:
        return backend
    import torch

    if torch.cuda.is_available():
        return choose_backend(backend)[0]
    try:
        import openvino  # noqa: F401
    except ImportError:
        return EngineBackend.onnxruntime
    return EngineBackend.openvino
