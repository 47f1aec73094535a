"""Run TensorRT engines on a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from radioplat.common.imports import INSTALL_TENSORRT, TENSORRT
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.builder_log import EngineLog, readable
from radioplat.exporting.engines.backends.network import make_logger
from radioplat.exporting.engines.engine_runner import Run
from radioplat.exporting.engines.interface import LayerTime
from radioplat.exporting.engines.library import cuda_driver, load_tensorrt
from radioplat.spec.resolved.number_formats import DATA_TYPES


def open_session(path: Path, record: dict[str, Any], gpu_id: int) -> tuple[str, Run]:
    """Return the name of the device, and the function that runs one batch.

    Raises:
        EngineError: no library, driver or GPU for this engine.
    """
    import torch

    trt, runtime, engine = _open(path, record, gpu_id)
    context = _context(engine, path)
    return torch.cuda.get_device_name(gpu_id), _runner(trt, runtime, engine, context, f"cuda:{gpu_id}", path)


def time_layers(path: Path, record: dict[str, Any], gpu_id: int, images: np.ndarray, calls: int) -> list[LayerTime]:
    """Run ``images`` so many times; return the mean time of each layer, in the order of execution.

    Raises:
        EngineError: as :func:`open_session`.
    """
    trt, runtime, engine = _open(path, record, gpu_id)
    context = _context(engine, path)
    run = _runner(trt, runtime, engine, context, f"cuda:{gpu_id}", path)
    run(images)
    total: dict[str, float] = {}

    class Times(trt.IProfiler):  # type: ignore[name-defined]
        """Adds up what TensorRT reports after each call."""

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            """Add the milliseconds of a layer."""
            total[layer_name] = total.get(layer_name, 0.0) + ms

    context.profiler = times = Times()
    for _ in range(calls):
        run(images)
    del times
    information = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    return layer_times(information, total, calls)


def layer_times(information: str, total: Mapping[str, float], calls: int) -> list[LayerTime]:
    """Return the mean time of each layer, in the order of ``total``.

    Args:
        information: of the engine, as JSON; with names alone, if it was built without detailed profiling.
        total: milliseconds of all calls by name of the layer.
    """
    listed = json.loads(information)
    facts = {layer["Name"]: layer for layer in listed.get("Layers", []) if isinstance(layer, dict)}
    return [
        LayerTime(
            name,
            str(facts.get(name, {}).get("LayerType", "")),
            milliseconds / calls,
            *(_format(facts.get(name, {}).get(side)) for side in ("Inputs", "Outputs")),
        )
        for name, milliseconds in total.items()
    ]


def _format(tensors: list[dict[str, Any]] | None) -> str:
    """Return our name of the data type of the first of an inspected layer's tensors; its text if we have none.

    Versions word it differently: ``Half``, ``Row major linear FP16 format``, ``Thirty-two wide channel vectorized row
    major Int8 format``.
    """
    first = (tensors or [{}])[0]
    text = str(first.get("Format/Datatype") or first.get("Datatype") or "")
    names = {word.lower(): row.name for row in DATA_TYPES.values() for word in (row.name, row.log_name) if word}
    return next((names[word] for word in re.findall(r"\w+", text.lower()) if word in names), text)


def _open(path: Path, record: dict[str, Any], gpu_id: int) -> tuple[ModuleType, Any, Any]:
    """Return the library, the runtime that must stay alive with the engine, and the engine."""
    import torch

    library = record["library"]
    trt = load_tensorrt(TENSORRT[library], INSTALL_TENSORRT[library], str(path))
    if torch.cuda.is_available():
        if not 0 <= gpu_id < torch.cuda.device_count():
            raise EngineError(f"there is no GPU {gpu_id}", where="gen_trt_engine.gpu_id")
        torch.cuda.set_device(gpu_id)
        check_gpu(record, torch.cuda.get_device_capability(gpu_id), str(path))
    log = EngineLog()
    runtime, engine = deserialize(trt, make_logger(trt, log), path, record)
    if engine is None:
        raise cannot_load(record, trt.__version__, log.errors, cuda_driver(), str(path))
    if not torch.cuda.is_available():
        hint = "Install torch built for CUDA."
        raise EngineError("torch finds no GPU, and it copies images and features", where=str(path), hint=hint)
    return trt, runtime, engine


def deserialize(trt: ModuleType, logger: Any, path: Path, record: dict[str, Any]) -> tuple[Any, Any]:  # noqa: ANN401
    """Return the runtime and the engine, for the DLA core that it was built for; None for an engine that is refused."""
    runtime = trt.Runtime(logger)
    if (core := (record.get("config") or {}).get("dla_core")) is not None:
        runtime.DLA_core = core  # an engine knows that it needs a core, and not which
    return runtime, runtime.deserialize_cuda_engine(path.read_bytes())


def _context(engine: Any, path: Path) -> Any:  # noqa: ANN401
    context = engine.create_execution_context()
    if context is None:
        raise EngineError("the GPU has not enough memory for the engine", where=str(path), hint="Free memory on it.")
    return context


def check_gpu(record: dict[str, Any], capability: tuple[int, int], where: str) -> None:
    """Refuse a GPU that the engine was not built for.

    Args:
        capability: the GPU's, (8, 6) for SM86.

    Raises:
        EngineError: it has another compute capability.
    """
    here, targets = "SM{}{}".format(*capability), record["compute_capabilities"]
    if targets and here not in targets:
        hint = f"Build it again with gen_trt_engine.tensorrt.compute_capabilities=[{here}], on this GPU for tensorrt."
        raise EngineError(f"the engine is for {', '.join(targets)} and this GPU is {here}", where=where, hint=hint)


def cannot_load(record: dict[str, Any], version: str, errors: list[str], driver: str | None, where: str) -> EngineError:
    """Return the error for an engine that TensorRT cannot load.

    Args:
        version: of the installed library.
        errors: messages of its log.
        driver: the newest CUDA that the NVIDIA driver supports; None without one.
    """
    text = " ".join(errors)
    if "cudaError 35" in text and "Serialization" not in text:
        if driver is None:
            hint = "Copy the engine to a machine with one, or build with gen_trt_engine.backend=onnxruntime."
            return EngineError("there is no NVIDIA driver on this machine to run the engine", where=where, hint=hint)
        return EngineError(
            f"the NVIDIA driver is too old: it has CUDA {driver} and {record['library']} {version} needs a newer one",
            where=where,
            hint="Update the driver.",
        )
    if version != record["version"]:
        return EngineError(
            f"the engine was built by {record['library']} {record['version']} and {version} is installed here",
            where=where,
            hint="Install that version, or build the engine again.",
        )
    reasons = "; ".join(readable(errors, 2)) or "without a reason"
    hint = "Run `radioplat gen_trt_engine` again."
    return EngineError(f"{record['library']} cannot load the engine: {reasons}", where=where, hint=hint)


def _runner(trt, runtime, engine, context, device: str, path: Path) -> Run:
    import torch

    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    outputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
    (images_name,) = [name for name in names if name not in outputs]

    def on_device(images: torch.Tensor) -> dict[str, torch.Tensor]:
        context.set_input_shape(images_name, tuple(images.shape))
        features = {
            name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=torch.float32, device=device)
            for name in outputs
        }
        for name, tensor in {images_name: images, **features}.items():
            context.set_tensor_address(name, tensor.data_ptr())
        if not context.execute_async_v3(torch.cuda.current_stream(device).cuda_stream):
            raise EngineError("TensorRT failed while it ran the engine", where=str(path))
        return features

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            batch = torch.from_numpy(images).to(device)  # must stay alive until the stream is synchronized
            features = on_device(batch)
        stream.synchronize()
        return {name: tensor.cpu().numpy() for name, tensor in features.items()}

    runner: Any = run
    runner.on_device = on_device
    runner.runtime = runtime  # the engine must not outlive it
    return runner
