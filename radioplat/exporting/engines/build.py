"""Build an engine and its record from an ONNX file: check, build, write, and run once if this machine can."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import onnx

import radioplat
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.calibration import is_calibrated
from radioplat.exporting.engines.backends.openvino import load_openvino
from radioplat.exporting.engines.comparison import (
    beside_openvino,
    causes_of_slowness,
    compare_latency,
    is_slower,
    warnings_of,
)
from radioplat.exporting.engines.coverage import Coverage, coverage
from radioplat.exporting.engines.engine_record import backend_of, mark_latency, state_of, write_engine
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.engines.execution import try_execution
from radioplat.exporting.engines.float_twins import float_types, write_twin
from radioplat.exporting.engines.interface import SECTION, BuildRequest, BuiltEngine
from radioplat.exporting.engines.layer_precision import precisions_of, set_precisions
from radioplat.exporting.engines.library import choose_backend, cuda_driver
from radioplat.exporting.engines.onnx_input import OnnxInput, check_data_type, parse_engine_type, read_onnx
from radioplat.exporting.made_of import recorded_sources
from radioplat.exporting.onnx.precision import write_in_fp32
from radioplat.spec.checks.tasks.engine import engine_problems
from radioplat.spec.resolved.number_formats import ACTIVATIONS
from radioplat.spec.schema.engine import CalibrationConfig, EngineBackend, TensorRTConfig

_BACKENDS = {
    EngineBackend.tensorrt: "radioplat.exporting.engines.backends.tensorrt",
    EngineBackend.tensorrt_rtx: "radioplat.exporting.engines.backends.tensorrt_rtx",
    EngineBackend.onnxruntime: "radioplat.exporting.engines.backends.onnxruntime",
    EngineBackend.openvino: "radioplat.exporting.engines.backends.openvino",
}

T = TypeVar("T")

# Their INT8 kernels take and give fp32.
_FOR_CPUS = (EngineBackend.onnxruntime, EngineBackend.openvino)


@dataclass(frozen=True)
class EngineReport:
    """Result of a build.

    Attributes:
        path: the engine; ``<path>.json`` is its record.
        bytes: its size.
        seconds: wall time of the build.
        backend, backend_reason: the backend, and why it was chosen.
        compute_capabilities: GPUs that can run it (``SM86``); empty for a CPU.
        library, version: the library that built it; only this version is sure to load it.
        data_type: ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``fp8``.
        input_shape: ``[3, height, width]``.
        batch: smallest, optimal and largest batch size.
        outputs: names of the outputs.
        kernels: number of convolution, GEMM and attention kernels by data type; None if the builder reports none.
        layers: number of layers of any kind; None likewise.
        coverage: the quantized kernels and layers.
        executed: whether it ran on this machine.
        execution: device and difference from the ONNX file, or the ``reason`` why it did not run.
        latency: beside those of its float twins, see :func:`radioplat.exporting.engines.comparison.compare_latency`;
            None if it was not measured.
        notes: deviations from the request, one sentence each.
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
    layers: int | None
    coverage: Coverage
    executed: bool
    execution: dict[str, Any]
    latency: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """That it computes something else than its file, or is not the fastest here, with the causes; sentences."""
        of_execution = [self.execution["warning"]] if "warning" in self.execution else []
        return [*of_execution, *(self.latency or {}).get("warnings", [])]

    @property
    def state(self) -> str:
        """See :func:`radioplat.exporting.engines.engine_record.state_of`."""
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
    latency_seconds: float = 0.0,
) -> EngineReport:
    """Build an engine, write it and its record ``<engine_path>.json`` atomically, then try to run it.

    Args:
        onnx_path: a file with one image input ``[B, 3, H, W]``, typed or quantized to ``config.data_type``.
        engine_path: must end in ``.engine``.
        height, width: needed if they are dynamic in the file; otherwise they must be equal to the file's.
        timing_cache: for backend ``tensorrt``.
        gpu_id: the GPU to build and run on.
        verbose: print the builder's messages to standard error.
        latency_seconds: of measuring each precision and batch size, if this machine can run the engine; the file is
            then also built without Q/DQ in fp32, fp16 and bf16. 0: no latency is measured.

    Raises:
        EngineError: a wrong field, a file that does not match the config, or the builder's reason.
    """
    onnx_path, engine_path = Path(onnx_path), Path(engine_path)
    inputs = open_inputs(onnx_path, engine_path, config, backend)
    file, chosen, reason = inputs.file, inputs.backend, inputs.reason
    request = BuildRequest(config, height, width, timing_cache, gpu_id, verbose)
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        covered = _write(file, engine_path, chosen, reason, request, Path(scratch))
        record = try_execution(engine_path, onnx_path, gpu_id)
        if latency_seconds and record["executed"]:
            latency = compare_with_twins(onnx_path, engine_path, record, latency_seconds, gpu_id, Path(scratch))
            record = mark_latency(engine_path, latency)
    recorded = {name: record[name] for name in EngineReport.__dataclass_fields__ if name in record}
    own = {"path": engine_path, "backend": chosen, "batch": tuple(record["batch"]), "outputs": list(file.outputs)}
    return EngineReport(**recorded | own | {"coverage": covered})


def compare_with_twins(
    source: Path,
    engine: Path,
    record: dict[str, Any],
    seconds: float,
    gpu_id: int,
    scratch: Path,
    sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Measure an engine that runs here beside ``source`` without Q/DQ in each float type, built by the same backend.

    Args:
        source: the ONNX file that it was built from.
        record: of the engine.
        seconds, sizes: as of :func:`radioplat.exporting.engines.comparison.compare_latency`.

    Returns:
        As that function, with ``warnings`` where a quantized engine is not the fastest.
    """
    backend, data_type = EngineBackend(record["backend"]), record["data_type"]
    config = _known(TensorRTConfig, record["config"] | {"calibration": CalibrationConfig(), "layers_precision": []})
    _, height, width = record["input_shape"]
    request = BuildRequest(dataclasses.replace(config, data_type=data_type), height, width, None, gpu_id)
    twins, missing = _write_twins(source, backend, record["backend_reason"], request, scratch)
    latency = compare_latency({data_type: engine, **twins}, missing, seconds, gpu_id, sizes)
    if data_type in ACTIVATIONS and is_slower(latency, data_type):
        sentence = (
            _in_openvino(source, engine, request, record["batch"][0], seconds, scratch)
            if backend is EngineBackend.onnxruntime
            else ""
        )
        causes = causes_of_slowness(backend, _known(Coverage, record["coverage"]), latency, sentence)
        latency["warnings"] = warnings_of(latency, data_type, causes)
    return latency


def _in_openvino(source: Path, engine: Path, request: BuildRequest, size: int, seconds: float, scratch: Path) -> str:
    """Return a sentence about ``source`` in OpenVINO beside ``engine``, of onnxruntime: measured, or why not.

    Args:
        size: of the batches, one that both take.
    """
    other = scratch / "openvino.engine"
    try:
        load_openvino()
        _write(read_onnx(source), other, EngineBackend.openvino, "for comparison", request, scratch)
        return beside_openvino(engine, other, size, seconds)
    except EngineError as error:
        return f"OpenVINO (gen_trt_engine.backend=openvino) may be faster; not measured: {error.problems[0].message}"


def _known(kind: type[T], values: dict[str, Any]) -> T:
    """Return an object of a dataclass from its fields in a record, which another version may have written."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    return kind(**{name: value for name, value in values.items() if name in names})


class EngineInputs(NamedTuple):
    """The checked file of an engine, its data type, and its backend with the reason for it."""

    file: OnnxInput
    data_type: str
    backend: EngineBackend
    reason: str


def open_inputs(onnx_path: Path, engine_path: Path, config: TensorRTConfig, backend: EngineBackend) -> EngineInputs:
    """Read the file, choose the backend, and check that they fit the config; arguments as of :func:`build_engine`.

    Raises:
        EngineError: a wrong field, a backend that is not installed, or a file that does not match the config.
    """
    if engine_path.suffix != ".engine":
        raise EngineError(f"{engine_path} must end in .engine", where=f"{SECTION}.trt_engine")
    if problems := list(engine_problems(config)):
        raise EngineError(*problems)
    data_type = parse_engine_type(config.data_type)
    chosen, reason = choose_backend(backend)
    if chosen is EngineBackend.openvino:
        load_openvino()
    file = read_onnx(onnx_path)
    check_data_type(file, data_type, chosen is EngineBackend.tensorrt and is_calibrated(config.calibration))
    return EngineInputs(file, data_type, chosen, reason)


def _write(
    file: OnnxInput, path: Path, backend: EngineBackend, reason: str, request: BuildRequest, scratch: Path
) -> Coverage:
    """Build an engine from ``file``, and write it to ``path`` with its record."""
    start = time.monotonic()
    typed, notes, config = file, list[str](), request.config
    data_type = parse_engine_type(config.data_type)
    if backend in _FOR_CPUS and file.formats and file.float_type not in (None, "fp32"):
        typed = read_onnx(write_in_fp32(file.path, scratch / f"fp32.{file.path.name}"))
        request = dataclasses.replace(request, float_type=file.float_type)
    if config.layers_precision:
        typed, notes = set_precisions(typed, config.layers_precision, scratch)
    types = [*_types(typed, data_type), *precisions_of(config.layers_precision)]
    built: BuiltEngine = importlib.import_module(_BACKENDS[backend]).build(typed, request, types)
    built = dataclasses.replace(built, notes=[*notes, *built.notes])
    if (before := backend_of(path)) and before != backend.value:
        hint = f"{SECTION}.trt_engine names another file, so that both stay"
        built.notes.append(f"it takes the place of the engine of {before} that was at {path}; {hint}")
    seconds = round(time.monotonic() - start, 3)
    covered = coverage(file.layers, built.kernels, built.requantizing)
    write_engine(path, built.data, _facts(file, built, types, covered, backend, reason, seconds, config))
    return covered


def _write_twins(
    source: Path, backend: EngineBackend, reason: str, request: BuildRequest, scratch: Path
) -> tuple[dict[str, Path], dict[str, str]]:
    """Build ``source`` without Q/DQ in each float type; return the engines by type, and reasons for missing ones."""
    engines = dict[str, Path]()
    names, missing = float_types(parse_engine_type(request.config.data_type), backend)
    for name in names:
        path = scratch / f"{name}.engine"
        config = dataclasses.replace(request.config, data_type=name)
        try:
            twin = read_onnx(write_twin(source, name, scratch / f"{name}.onnx"))
            _write(twin, path, backend, reason, dataclasses.replace(request, config=config), scratch)
            load_engine(path, gpu_id=request.gpu_id)
        except EngineError as error:
            missing[name] = error.problems[0].message
        except Exception as error:  # noqa: BLE001 - a file of another tool may not be rewritten; the engine is built
            missing[name] = f"the file cannot be written in {name}: {' '.join(str(error).split())[:200]}"
        else:
            engines[name] = path
    return engines, missing


def _types(file: OnnxInput, data_type: str) -> list[str]:
    """Return all data types that the file computes in."""
    return list(dict.fromkeys([data_type, *file.formats, *([file.float_type] if file.float_type else [])]))


def _facts(
    file: OnnxInput,
    built: BuiltEngine,
    types: list[str],
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
        "onnx_sources": [{"name": each.name, "files": each.files} for each in recorded_sources(file.model)],
        "inputs": {name: {"shape": shape, "dtype": "float32"} for name, shape in file.inputs.items()},
        "outputs": {name: {"shape": shape, "dtype": "float32"} for name, shape in file.outputs.items()},
        "backend": backend.value,
        "backend_reason": reason,
        "library": built.library,
        "version": built.version,
        "versions": {"onnx": onnx.__version__, "radioplat": radioplat.__version__, "cuda_driver": cuda_driver()},
        "data_type": parse_engine_type(config.data_type),
        "types": types,
        "compute_capabilities": built.targets,
        "profiles": [{images: profile}],
        "input_shape": built.input_shape,
        "batch": built.batch,
        "seconds": seconds,
        "kernels": None if built.kernels is None else dict(Counter(kernel.data_type for kernel in built.kernels)),
        "layers": built.layers,
        "coverage": dataclasses.asdict(covered),
        "rest": built.rest,
        "notes": built.notes,
        "config": dataclasses.asdict(config),
    }
