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
from radioplat.exporting.engines.backends import layer_kinds
from radioplat.exporting.engines.backends.layer_kinds import CONVERSIONS, ELEMENTWISE, PRODUCTS
from radioplat.exporting.engines.engine_record import read_record
from radioplat.exporting.engines.engine_runner import SESSIONS, load_engine
from radioplat.exporting.engines.interface import LayerTime
from radioplat.exporting.engines.latency import timer
from radioplat.exporting.latency import Latency, measure_in_turn
from radioplat.spec.resolved.number_formats import ACTIVATIONS, FLOATS

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
        advice: the changes that would help most, by estimate, at most three lines.
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
    return layer_kinds.group_of(layer.kind, layer.name)


def shares(layers: Sequence[LayerTime]) -> dict[str, float]:
    """Return each group's share of the layers' time, the largest first."""
    times: Counter[str] = Counter()
    for layer in layers:
        times[group_of(layer)] += layer.milliseconds  # type: ignore[assignment]
    total = sum(times.values()) or 1.0
    return {group: value / total for group, value in times.most_common()}


def advice(layers: Sequence[LayerTime], record: dict[str, Any]) -> list[str]:
    """Return the changes that would help most, with the share of the time of the layers that they concern.

    The order is that of an estimate of what each saves; what it really saves is not known before it is made.
    """
    total = sum(layer.milliseconds for layer in layers) or 1.0
    of_group: dict[str, list[LayerTime]] = {}
    for layer in layers:
        of_group.setdefault(group_of(layer), []).append(layer)
    changes: list[tuple[float, str]] = []

    def add(rows: Sequence[LayerTime], saved: float, text: str) -> None:
        """Add a change that saves about so much of the time of ``rows``, if they take a percent."""
        share = sum(row.milliseconds for row in rows) / total
        if share >= 0.01:
            changes.append((saved * share, f"{text} ({share:.0%} of the time)"))

    quantized = record["data_type"] in ACTIVATIONS
    products = of_group.get(PRODUCTS, [])
    in_floats = [row for row in products if row.reads in FLOATS]
    requantized = [row for row in products if row.reads in ACTIVATIONS and row.writes in FLOATS]
    conversions, element = of_group.get(CONVERSIONS, []), of_group.get(ELEMENTWISE, [])
    if quantized:
        text = f"{len(in_floats)} convolutions and linear layers read floats ({_names(in_floats)}): quantize them too"
        add(in_floats, 1, f"{text} (quantize.layers), if `radioplat sensitivity` allows it")
        text = f"{len(conversions)} layers only convert between number formats ({_names(conversions)})"
        add(conversions, 1, f"{text}: `radioplat lint` on the ONNX file names scales that differ")
        text = f"{len(requantized)} {record['data_type'].upper()} layers write floats ({_names(requantized)})"
        add(requantized, 0.25, f"{text}: quantize the layers that read them")
    elif record["data_type"] == "fp32":
        text = f"{len(products)} convolutions and linear layers are in fp32 ({_names(products)})"
        add(products, 0.5, f"{text}: quantize, or export.data_type=fp16")
    text = f"{len(element)} element-wise layers are not fused into the layer before them ({_names(element)})"
    add(element, 1, f"{text}: activations that fuse (ReLU, SiLU, GELU) and BatchNorm that is folded")
    return [text for _, text in sorted(changes, reverse=True)][:MOST_ADVICE]


def _names(rows: Sequence[LayerTime]) -> str:
    names = [row.name for row in rows[:2]]
    return ", ".join(names) + (", ..." if len(rows) > len(names) else "")
