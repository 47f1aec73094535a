"""Backend TensorRT (8.6, 10 or 11): an engine for this machine's GPU.

Written from the documentation and not run yet, for lack of a machine with this library and a GPU. Differences:

- 11 has only strongly typed networks, no calibrators and no precision flags.
- 10 has both; networks are strongly typed unless ranges come from a calibration.
- 8.6 has no strongly typed networks: the builder may choose any type that its flags allow.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from radioplat.common.atomic_files import written_aside
from radioplat.common.imports import INSTALL_TENSORRT
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.builder_log import EngineLog
from radioplat.exporting.engines.backends.calibration import is_calibrated, set_ranges
from radioplat.exporting.engines.backends.network import Build, finish_build, reporting, start_build
from radioplat.exporting.engines.interface import SECTION, BuildRequest, BuiltEngine, resolve_shape
from radioplat.exporting.engines.library import TENSORRT, load_tensorrt
from radioplat.exporting.engines.onnx_input import OnnxInput
from radioplat.exporting.engines.targets import WHERE, requirement, unsupported_type
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES


def build(file: OnnxInput, request: BuildRequest, data_types: list[str]) -> BuiltEngine:
    """Build for GPU ``request.gpu_id``.

    Raises:
        EngineError: a file with Q/DQ for the DLA, no TensorRT, no GPU, a GPU without the data type, or TensorRT's
            reason.
    """
    if request.config.dla_core is not None:
        _require_dla(file, request)
    trt = load_tensorrt(TENSORRT, INSTALL_TENSORRT["tensorrt"])
    target = _gpu(request, data_types)
    log = EngineLog(echo=request.verbose)
    calibrated = is_calibrated(request.config.calibration)
    with reporting(log, file.path):
        build = start_build(trt, log, file, request, network_flags(trt, calibrated))
        if not is_typed(trt, calibrated):
            # Beside INT8 and FP8 also fp16, without which all other layers are in fp32.
            halves = ["fp16"] if set(data_types) & set(ACTIVATIONS) else []
            for name in dict.fromkeys([*data_types, *halves]):
                _allow(trt, build, name)
        notes = [] if request.config.dla_core is None else _use_dla(trt, build, request.config.dla_core)
        alive = set_ranges(build, request, file) if calibrated else None
        timings = _read_timings(build, request.timing_cache)
        engine = finish_build(build, log, file.path)
        del alive
    if timings is not None and request.timing_cache:
        _write_timings(build, Path(request.timing_cache))
    return BuiltEngine(
        data=engine,
        library="tensorrt",
        version=trt.__version__,
        targets=[target],
        input_shape=build.shape,
        batch=build.batch,
        kernels=log.kernel_list(),
        layers=log.layer_count(),
        requantizing=log.requantizing_count(),
        notes=notes,
    )


def major(trt: ModuleType) -> int:
    """Return 10 for version 10.13.2."""
    return int(trt.__version__.partition(".")[0])


def is_typed(trt: ModuleType, calibrated: bool) -> bool:
    """Return whether the network computes only in the types of its file."""
    return major(trt) >= 11 or (hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED") and not calibrated)


def network_flags(trt: ModuleType, calibrated: bool) -> int:
    """Return the flags of ``create_network``."""
    known = trt.NetworkDefinitionCreationFlag
    if is_typed(trt, calibrated):
        return 1 << int(known.STRONGLY_TYPED) if hasattr(known, "STRONGLY_TYPED") else 0
    return 1 << int(known.EXPLICIT_BATCH) if hasattr(known, "EXPLICIT_BATCH") else 0


def _gpu(request: BuildRequest, data_types: list[str]) -> str:
    """Select the GPU to build on for this process; return its compute capability."""
    import torch

    if not torch.cuda.is_available():
        raise EngineError(
            "tensorrt builds on the GPU that the engine is for, and there is none",
            where=f"{SECTION}.backend",
            hint="Use tensorrt_rtx, which needs none, or onnxruntime.",
        )
    if not 0 <= request.gpu_id < torch.cuda.device_count():
        raise EngineError(f"there is no GPU {request.gpu_id}", where=f"{SECTION}.gpu_id")
    torch.cuda.set_device(request.gpu_id)
    here = "SM{}{}".format(*torch.cuda.get_device_capability(request.gpu_id))
    requested = {name.upper() for name in request.config.compute_capabilities}
    if requested - {"AUTO", here}:
        raise EngineError(
            f"tensorrt builds only for this machine's GPU, {here}",
            where=WHERE,
            hint=f"Leave the field out, or use {SECTION}.backend=tensorrt_rtx.",
        )
    if unsupported := unsupported_type(here, data_types):
        raise EngineError(f"this GPU is {here}: {requirement(unsupported)}", where=f"{SECTION}.tensorrt.data_type")
    return here


def _allow(trt: ModuleType, build: Build, data_type: str) -> None:
    row = DATA_TYPES.get(data_type)
    if row is None or row.builder_flag is None:
        return
    flag = getattr(trt.BuilderFlag, row.builder_flag, None)
    if flag is None:
        raise EngineError(
            f"TensorRT {trt.__version__} has no {data_type}",
            where=f"{SECTION}.tensorrt.data_type",
            hint="Install a newer one.",
        )
    build.config.set_flag(flag)


def _require_dla(file: OnnxInput, request: BuildRequest) -> None:
    """Check that a file and a request are for a DLA.

    Raises:
        EngineError: they are not.
    """
    where = f"{SECTION}.tensorrt.dla_core"
    if file.formats:
        hint = "Export the float student with export.force_ptq, and give the ranges: docs/how_to/jetson.md."
        raise EngineError(f"the DLA reads no Q/DQ, and {file.path.name} has them", where=where, hint=hint)
    _, (smallest, _, largest) = resolve_shape(file.image_shape, request)
    if smallest != largest:  # "Working with DLA" of TensorRT's documentation: no dynamic dimensions
        raise EngineError(
            f"the DLA computes batches of one size, not {smallest} to {largest} images",
            where=where,
            hint="Give min_batch_size, opt_batch_size and max_batch_size one value, or export with export.batch_size.",
        )


def _use_dla(trt: ModuleType, build: Build, core: int) -> list[str]:
    """Let the DLA compute what it can; return a note about the layers that run on the GPU.

    Raises:
        EngineError: this machine has no such core.
    """
    where, cores = f"{SECTION}.tensorrt.dla_core", build.builder.num_DLA_cores
    if core >= cores:
        hint = "Leave it out; Jetson AGX Orin and Orin NX have one or two."
        raise EngineError(f"this machine has {cores} DLA cores, counted from 0", where=where, hint=hint)
    config, network = build.config, build.network
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    others = [layer.name for layer in layers if not config.can_run_on_DLA(layer)]
    text = f"DLA core {core} computes {len(layers) - len(others)} of {len(layers)} layers"
    return [f"{text}; on the GPU: {', '.join(others)}" if others else text]


def _read_timings(build: Build, path: str | None) -> Any:
    if path is None:
        return None
    known = Path(path).read_bytes() if Path(path).is_file() else b""
    cache = build.config.create_timing_cache(known)
    if cache is None or not build.config.set_timing_cache(cache, ignore_mismatch=False):
        raise EngineError(
            "this file has no timings, or those of another GPU or TensorRT",
            where=f"{SECTION}.timing_cache",
            hint="Use another file name.",
        )
    return cache


def _write_timings(build: Build, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside:
        aside.write_bytes(memoryview(build.config.get_timing_cache().serialize()))
