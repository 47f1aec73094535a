"""From an ONNX file to an engine and its record: check, build, write, run once where that can be."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

import radioplat
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.calibration import is_calibrated
from radioplat.exporting.engines.coverage import Coverage, coverage
from radioplat.exporting.engines.execution import try_execution
from radioplat.exporting.engines.interface import SECTION, BuildRequest, BuiltEngine
from radioplat.exporting.engines.layer_precision import precisions_of, set_precisions
from radioplat.exporting.engines.library import choose_backend, cuda_driver
from radioplat.exporting.engines.onnx_input import OnnxInput, check_data_type, parse_engine_type, read_onnx
from radioplat.exporting.engines.record import state_of, write_engine
from radioplat.spec.checks.tasks.engine import engine_problems
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

_BACKENDS = {
    EngineBackend.tensorrt: "radioplat.exporting.engines.backends.tensorrt",
    EngineBackend.tensorrt_rtx: "radioplat.exporting.engines.backends.tensorrt_rtx",
    EngineBackend.onnxruntime: "radioplat.exporting.engines.backends.onnxruntime",
}


@dataclass(frozen=True)
class EngineReport:
    """What was written, and whether it ran.

    Attributes:
        path: the engine; ``<path>.json`` beside it says what it was built from.
        bytes: its size.
        seconds: wall time of the build.
        backend, backend_reason: what built it, and why that was chosen.
        compute_capabilities: the GPUs it is for (``SM86``); empty for a CPU.
        library, version: what built it, and the only one that is sure to load it.
        data_type: ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``fp8``.
        input_shape: ``[3, height, width]``.
        batch: smallest, best and largest batch it takes.
        outputs: their names.
        kernels: convolution, GEMM and attention kernels by datatype; None where the builder does not tell.
        coverage: which kernels and layers are quantized.
        executed: whether it computed something here.
        execution: on what and how close to the ONNX file, or the ``reason`` why not.
        notes: what differs from what was asked, a sentence each.
    """

    path: Path
    bytes: int
    seconds: float
    backend: EngineBackend
    backend_reason: str
    compute_capabilities: list[str]
    library: str
    version: str
    data_type: str
    input_shape: list[int]
    batch: tuple[int, int, int]
    outputs: list[str]
    kernels: dict[str, int] | None
    coverage: Coverage
    executed: bool
    execution: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """As :func:`radioplat.exporting.engines.record.state_of`."""
        return state_of({"executed": self.executed, "execution": self.execution, "evaluated": False})


def build_engine(
    onnx_path: str | Path,
    engine_path: str | Path,
    config: TensorRTConfig,
    *,
    backend: EngineBackend = EngineBackend.auto,
    height: int | None = None,
    width: int | None = None,
    timing_cache: str | None = None,
    gpu_id: int = 0,
    verbose: bool = False,
) -> EngineReport:
    """Build an engine and write it, and ``<engine_path>.json``, under their names once it is whole; then try to run it.

    Args:
        onnx_path: a file with one image input ``[B, 3, H, W]``, typed or quantized as ``config.data_type`` says.
        engine_path: must end in ``.engine``, whatever builds it.
        height, width: needed where the file leaves them open; where it does not, they must agree with it.
        timing_cache: of backend ``tensorrt``.
        gpu_id: the GPU to build and run on, where there is one.
        verbose: let the builder's messages through to standard error.

    Raises:
        EngineError: a wrong field, a file that does not fit the config, or whatever reason the builder gives.
    """
    onnx_path, engine_path = Path(onnx_path), Path(engine_path)
    if engine_path.suffix != ".engine":
        raise EngineError(f"{engine_path} must end in .engine", where=f"{SECTION}.trt_engine")
    if problems := list(engine_problems(config)):
        raise EngineError(*problems)
    data_type = parse_engine_type(config.data_type)
    chosen, reason = choose_backend(backend)
    file = read_onnx(onnx_path)
    calibrated = chosen is EngineBackend.tensorrt and is_calibrated(config.calibration)
    check_data_type(file, data_type, calibrated)
    request = BuildRequest(config, height, width, timing_cache, gpu_id, verbose)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        typed = file
        notes: list[str] = []
        if config.layers_precision:
            typed, notes = set_precisions(file, config.layers_precision, Path(scratch))
        types = [*_types(file, data_type), *precisions_of(config.layers_precision)]
        built: BuiltEngine = importlib.import_module(_BACKENDS[chosen]).build(typed, request, types)
    built = dataclasses.replace(built, notes=[*notes, *built.notes])
    seconds = round(time.monotonic() - start, 3)
    covered = coverage(file.layers, built.kernels)
    write_engine(engine_path, built.data, _facts(file, built, covered, chosen, reason, seconds, config))
    record = try_execution(engine_path, onnx_path, gpu_id)
    return EngineReport(
        path=engine_path,
        bytes=record["bytes"],
        seconds=seconds,
        backend=chosen,
        backend_reason=reason,
        compute_capabilities=built.targets,
        library=built.library,
        version=built.version,
        data_type=data_type,
        input_shape=built.input_shape,
        batch=built.batch,
        outputs=list(file.outputs),
        kernels=_counts(built),
        coverage=covered,
        executed=record["executed"],
        execution=record["execution"],
        notes=built.notes,
    )


def _types(file: OnnxInput, data_type: str) -> list[str]:
    """Everything the file computes in."""
    return list(dict.fromkeys([data_type, *file.formats, *([file.float_type] if file.float_type else [])]))


def _counts(built: BuiltEngine) -> dict[str, int] | None:
    if built.kernels is None:
        return None
    counts: dict[str, int] = {}
    for kernel in built.kernels:
        counts[kernel.data_type] = counts.get(kernel.data_type, 0) + 1
    return counts


def _facts(
    file: OnnxInput,
    built: BuiltEngine,
    covered: Coverage,
    backend: EngineBackend,
    reason: str,
    seconds: float,
    config: TensorRTConfig,
) -> dict[str, Any]:
    images = next(iter(file.inputs))
    profile = dict(zip(("min", "opt", "max"), ([n, *built.input_shape] for n in built.batch), strict=True))
    return {
        "onnx": file.path.name,
        "onnx_sha256": file.sha256,
        "inputs": {name: {"shape": shape, "dtype": "float32"} for name, shape in file.inputs.items()},
        "outputs": {name: {"shape": shape, "dtype": "float32"} for name, shape in file.outputs.items()},
        "backend": backend.value,
        "backend_reason": reason,
        "library": built.library,
        "version": built.version,
        "versions": {"onnx": onnx.__version__, "radioplat": radioplat.__version__, "cuda_driver": cuda_driver()},
        "data_type": parse_engine_type(config.data_type),
        "compute_capabilities": built.targets,
        "profiles": [{images: profile}],
        "input_shape": built.input_shape,
        "batch": built.batch,
        "seconds": seconds,
        "kernels": _counts(built),
        "coverage": dataclasses.asdict(covered),
        "notes": built.notes,
        "config": dataclasses.asdict(config),
    }
