"""Latency of the student as an engine: in torch, in onnxruntime and, on a GPU, in TensorRT."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch

from benchmarks.gpu.interleave import ROUNDS, wait
from benchmarks.gpu.setting import Setting

BATCHES = (1, 8)
TENSORRT = ("tensorrt", "tensorrt_rtx")
MODULES = {"tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}  # names of which one is enough


def latency(setting: Setting) -> dict[str, Any]:
    """Milliseconds of a forward pass of one and eight images, each engine in turn; those that are missing say why."""
    model = timm.create_model(**setting.student.arguments, num_classes=0).eval().to(setting.device)
    ways: dict[str, Callable[[torch.Tensor], object]] = {"torch": model}
    found: dict[str, Any] = {}
    if setting.compiles:
        ways["torch, compiled"] = torch.compile(model, dynamic=False)
    for name, make in {"onnxruntime": _onnxruntime, **dict.fromkeys(TENSORRT, _tensorrt)}.items():
        needed = [("onnx",), ("onnxscript",), MODULES.get(name, (name,))]
        missing = [names[0] for names in needed if not any(map(importlib.util.find_spec, names))]
        if missing:
            found[name] = {"unmeasured": f"{missing[0]} is not installed"}
            continue
        try:
            ways[name] = make(model, setting, name)
        except Exception as error:  # of one engine; the others are measured
            found[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    with torch.inference_mode():
        for batch in BATCHES:
            images = torch.rand(batch, 3, setting.student.size, setting.student.size, device=setting.device)
            for name, values in _in_turn(ways, images, setting.seconds / len(BATCHES), setting.device).items():
                ms = [1e3 * seconds for seconds in values]
                figures = {"median_ms": statistics.median(ms), "spread_ms": [min(ms), max(ms)]}
                found.setdefault(name, {})[f"batch_{batch}"] = figures
    return {"engines": found, "format": "fp32"}


def _in_turn(
    ways: dict[str, Callable[[torch.Tensor], object]], images: torch.Tensor, seconds: float, device: str
) -> dict[str, list[float]]:
    """Return the median call of each way in each round."""
    for call in ways.values():
        call(images)
    each = seconds / ROUNDS / len(ways)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            taken: list[float] = []
            end = time.perf_counter() + each
            while not taken or time.perf_counter() < end:
                begin = time.perf_counter()
                call(images)
                wait(device)
                taken.append(time.perf_counter() - begin)
            times[name].append(statistics.median(taken))
    return times


def _file(model: torch.nn.Module, setting: Setting) -> Path:
    path = Path(setting.scratch) / "student.onnx"
    if not path.exists():
        images = torch.rand(2, 3, setting.student.size, setting.student.size, device=setting.device)
        batch = torch.export.Dim("batch", min=1, max=64)
        torch.onnx.export(
            model, (images,), path, dynamo=True, dynamic_shapes=({0: batch},), input_names=["image"], verbose=False
        )
    return path


def _onnxruntime(model: torch.nn.Module, setting: Setting, name: str) -> Callable[[torch.Tensor], object]:
    """Return a call of a session; on a GPU images and features cross to and from the host, as with any session."""
    import onnxruntime

    gpu = setting.device == "cuda"
    provider = "CUDAExecutionProvider" if gpu else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeError(f"this onnxruntime has no {provider}")
    session = onnxruntime.InferenceSession(str(_file(model, setting)), providers=[provider])
    return lambda images: session.run(None, {"image": images.cpu().numpy()})


def _tensorrt(model: torch.nn.Module, setting: Setting, name: str) -> Callable[[torch.Tensor], object]:
    """Return a call of an engine that radioplat builds and opens."""
    if setting.device != "cuda":
        raise RuntimeError("there is no GPU")
    from radioplat.exporting.engines.build import build_engine
    from radioplat.exporting.engines.engine_runner import load_engine
    from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

    targets = ["SM{}{}".format(*torch.cuda.get_device_capability())] if name == "tensorrt_rtx" else None
    given = {"compute_capabilities": targets} if targets else {}
    config = TensorRTConfig(data_type="fp32", min_batch_size=1, opt_batch_size=1, max_batch_size=max(BATCHES), **given)
    path = Path(setting.scratch) / f"{name}.engine"
    build_engine(_file(model, setting), path, config, backend=EngineBackend(name))
    call = load_engine(path).on_device
    assert call is not None
    return lambda images: call(images)
