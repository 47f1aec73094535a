"""Where an engine's time goes: its layers by time, the types that they read and write, and what would help most."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radioplat.errors import EngineError
from radioplat.exporting.engines.engine_record import read_record
from radioplat.exporting.engines.engine_runner import SESSIONS, load_engine
from radioplat.exporting.engines.interface import LayerTime
from radioplat.exporting.engines.latency import timer
from radioplat.exporting.latency import Latency, measure_in_turn
from radioplat.spec.resolved.number_formats import ACTIVATIONS, FLOATS

# Words in the kinds of layers of OpenVINO, onnxruntime and TensorRT, lower case; the first match counts.
_GROUPS = {
    "attention": ("scaleddotproduct", "mha", "attention"),
    "products": ("conv", "gemm", "matmul", "fullyconnected", "brgemm", "matrix_multiply", "myelin"),
    "conversions": ("quantize", "convert", "cast", "reorder", "reformat"),
    "normalization": ("norm", "mvn", "softmax", "reduce"),
    "copies": ("transpose", "reshape", "concat", "split", "slice", "gather", "shuffle", "constant", "expand"),
}
ELEMENTWISE = "element-wise"
MOST_ADVICE = 3


@dataclass(frozen=True)
class Profile:
    """An engine's times on this machine.

    Attributes:
        engine: the file.
        device: that it ran on.
        batch: images of a call.
        latency: of calls without measuring of layers.
        layers: the slowest first.
        groups: share of the layers' time by group of operations, the largest first.
        advice: the changes that would help most, at most three.
        record: content of ``<engine>.json``.
    """

    engine: Path
    device: str
    batch: int
    latency: Latency
    layers: list[LayerTime]
    groups: dict[str, float]
    advice: list[str]
    record: dict[str, Any]


def profile(path: str | Path, batch: int | None = None, seconds: float = 2.0, gpu_id: int = 0) -> Profile:
    """Measure an engine on this machine, as a whole and layer by layer.

    Args:
        batch: images of a call; None: the batch size that the engine was built for.
        seconds: of measuring.

    Raises:
        EngineError: the engine cannot be run here, or not with this batch size.
    """
    path, record = Path(path), read_record(path)
    smallest, best, largest = record["batch"]
    size = best if batch is None else batch
    if not smallest <= size <= largest:
        hint = f"It was built for {smallest} to {largest} images."
        raise EngineError(f"the engine takes no batch of {size}", where="batch_size", hint=hint)
    runner = load_engine(path, gpu_id=gpu_id)
    call, _ = timer(runner, size)
    latency = measure_in_turn({"own": call}, seconds)["own"]
    calls = max(5, int(1000 * seconds / latency.p50))
    images = np.random.default_rng(0).random((size, *record["input_shape"]), dtype=np.float32)
    session = importlib.import_module(SESSIONS[record["library"]])
    layers = sorted(session.time_layers(path, record, gpu_id, images, calls), key=lambda layer: -layer.milliseconds)
    return Profile(path, runner.device, size, latency, layers, shares(layers), advice(layers, record), record)


def group_of(layer: LayerTime) -> str:
    """Return the group of operations that a layer belongs to."""
    kind = layer.kind.lower()
    return next((group for group, words in _GROUPS.items() if any(word in kind for word in words)), ELEMENTWISE)


def shares(layers: Sequence[LayerTime]) -> dict[str, float]:
    """Return each group's share of the layers' time, the largest first."""
    times: Counter[str] = Counter()
    for layer in layers:
        times[group_of(layer)] += layer.milliseconds  # type: ignore[assignment]
    total = sum(times.values()) or 1.0
    return {group: value / total for group, value in times.most_common()}


def advice(layers: Sequence[LayerTime], record: dict[str, Any]) -> list[str]:
    """Return the changes that would save most time, by the time of the layers that they concern."""
    total = sum(layer.milliseconds for layer in layers) or 1.0
    of_group: dict[str, list[LayerTime]] = {}
    for layer in layers:
        of_group.setdefault(group_of(layer), []).append(layer)

    def share(rows: Sequence[LayerTime]) -> float:
        """Return the share of the time that ``rows`` take."""
        return sum(row.milliseconds for row in rows) / total

    quantized = record["data_type"] in ACTIVATIONS
    in_floats = [row for row in of_group.get("products", []) if row.reads in FLOATS]
    requantized = [row for row in of_group.get("products", []) if row.reads in ACTIVATIONS and row.writes in FLOATS]
    conversions, element = of_group.get("conversions", []), of_group.get(ELEMENTWISE, [])
    changes: list[tuple[float, str]] = []
    if quantized and in_floats:
        text = f"{len(in_floats)} convolutions and linear layers read floats ({_names(in_floats)}): quantize them too"
        changes.append((share(in_floats), f"{text} (quantize.layers), if `radioplat sensitivity` allows it"))
    if quantized and conversions:
        text = f"{len(conversions)} layers only convert between number formats ({_names(conversions)})"
        changes.append((share(conversions), f"{text}: `radioplat lint` on the ONNX file names scales that differ"))
    if quantized and requantized:
        text = f"{len(requantized)} INT8 layers write floats ({_names(requantized)})"
        changes.append((share(requantized) / 4, f"{text}: quantize the layers that read them"))
    if not quantized and record["data_type"] == "fp32":
        changes.append((share(of_group.get("products", [])) / 2, "all is fp32: quantize, or export.data_type=fp16"))
    if element:
        text = f"{len(element)} element-wise layers are not fused into the layer before them ({_names(element)})"
        changes.append(
            (share(element), f"{text}: activations that fuse (ReLU, SiLU, GELU) and BatchNorm that is folded")
        )
    latency = record.get("latency") or {}
    for warning in latency.get("warnings", ())[:1]:
        changes.append((0.5, warning))
    changes.sort(key=lambda row: -row[0])
    return [f"{text} ({value:.0%} of the time)" for value, text in changes if value >= 0.01][:MOST_ADVICE]


def _names(rows: Sequence[LayerTime]) -> str:
    names = [row.name for row in rows[:2]]
    return ", ".join(names) + (", ..." if len(rows) > len(names) else "")
