"""Latency and images per second of a student in torch, compiled, and as engines in several formats.

``python -m benchmarks.engines_beside_torch [--model quickstart|vit_small|resnet50] [--device cpu|cuda] [--rounds N]
[--batches 1 8 32]``. On a GPU: torch and ``torch.compile`` in fp16, TensorRT and TensorRT for RTX in fp16, INT8 and,
where the GPU has it, FP8; images and features stay on the GPU, time is CUDA's. On a CPU: torch and ``torch.compile`` in
fp32, onnxruntime engines in fp32 and from INT8 Q/DQ, and what ``export.cpu`` writes, static and dynamic. All are made
by the project's own path, in one process, with the same images and as many threads. Every round runs every side at
every batch size once, each other round the other way round; ratios are taken inside a round.

The last line is one JSON object of medians, ours over theirs: above 1 in images/s (at the largest batch) and below 1 in
latency (at the smallest) speak for ours. Where a side has several ways (TensorRT's two, torch.compile's two) the
best one counts. What the device has no sides for is null.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.engines_sides import CPU_SIDES, GPU_SIDES, MODELS, NAMES, Side, make_sides
from radioplat.common import terminal

LIMIT_S = 420.0  # for the rounds: what is made before them takes a minute or two
WINDOW_S = 0.4  # a side's time in a round at one batch size, beside a call that warms up


@dataclass(frozen=True)
class Speed:
    """Of one side at one batch size in one round: ``latency`` in seconds, the median call; ``images_s``."""

    latency: float
    images_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed of engines; see the head of the file.")
    parser.add_argument("--model", choices=tuple(MODELS), default="quickstart")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    parser.add_argument("--rounds", type=int, default=7, help=f"at most; {LIMIT_S / 60:.0f} minutes of them")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    given = parser.parse_args()
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU on this machine: leave --device out, or give cpu")
    batches = sorted(set(given.batches))
    if batches[0] < 1 or given.rounds < 1:
        parser.error("batches and rounds begin at 1")
    with tempfile.TemporaryDirectory(prefix="engines") as scratch, torch.inference_mode():
        sides, images = make_sides(given.model, device, batches, Path(scratch))
        rounds = _run(sides, images, batches, device, given.rounds)
    _report(sides, rounds, batches, f"{given.model} at {MODELS[given.model].img_size} px on {_machine(device)}")
    other, why = (CPU_SIDES, "--device cpu") if device == "cuda" else (GPU_SIDES, "a GPU, and there is none here")
    terminal.say(f"Not measured, they need {why}: {'; '.join(other)}.")
    print(json.dumps(_ratios(rounds, batches)))


def _run(sides: list[Side], images: torch.Tensor, batches: list[int], device: str, most: int) -> list[dict]:
    """Speeds by (label, batch size), one mapping a round."""
    alive, begin, rounds = [side for side in sides if not side.reason], time.monotonic(), []
    for side in alive:  # torch compiles, libraries allocate: no part of any round
        terminal.note(f"first calls of {side.label}")
        for batch in batches:
            side.calls[batch](_given(side, images[:batch], device))
    while len(rounds) < most:
        seconds = time.monotonic() - begin
        if rounds and seconds * (len(rounds) + 1) / len(rounds) > LIMIT_S:
            break
        found = {}
        for side in alive if len(rounds) % 2 == 0 else alive[::-1]:
            for batch in batches:
                batch_of_it = _given(side, images[:batch], device)
                measure = _on_gpu if device == "cuda" else _on_cpu
                found[side.label, batch] = measure(side.calls[batch], batch_of_it, batch)
        rounds.append(found)
        terminal.note(f"round {len(rounds)} of {most}")
    return rounds


def _given(side: Side, images: torch.Tensor, device: str):
    return images.numpy() if side.takes_arrays else images.to(device)


def _on_cpu(call: Callable, images, batch: int) -> Speed:
    call(images)
    times, begin = [], time.perf_counter()
    while not times or time.perf_counter() - begin < WINDOW_S:
        start = time.perf_counter()
        call(images)
        times.append(time.perf_counter() - start)
    return Speed(statistics.median(times), batch * len(times) / sum(times))


def _on_gpu(call: Callable, images: torch.Tensor, batch: int) -> Speed:
    """Latency from calls that are waited for, images/s from calls in a row, half of the window each."""
    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        times, begin = [], time.perf_counter()
        call(images)
        stream.synchronize()
        while not times or time.perf_counter() - begin < WINDOW_S / 2:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            call(images)
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        latency = statistics.median(times)
        count = max(3, round(WINDOW_S / 2 / latency))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        for _ in range(count):
            call(images)
        end.record(stream)
        end.synchronize()
    return Speed(latency, batch * count / (start.elapsed_time(end) / 1e3))


@functools.cache
def _stream() -> torch.cuda.Stream:
    """One for all: TensorRT waits more on the default one, and each has memory of its own."""
    return torch.cuda.Stream()


def _report(sides: list[Side], rounds: list[dict], batches: list[int], title: str) -> None:
    rows = []
    for side in sides:
        cells = []
        for batch in batches:
            if side.reason:
                cells += ["–", "–"]
                continue
            speeds = [found[side.label, batch] for found in rounds]
            cells += [_spread([s.latency * 1e3 for s in speeds]), _spread([s.images_s for s in speeds])]
        rows.append([side.label, *cells, "–" if side.reason else f"{side.cosine:.4f}"])
    columns = [text for batch in batches for text in (f"ms, batch {batch}", f"images/s, batch {batch}")]
    why = [f"{side.label}: {side.reason}." for side in sides if side.reason]
    shown = f"Median of {len(rounds)} rounds, and in brackets least and most. cosine: with torch's features in fp32."
    terminal.show_table(title, ["side", *columns, "cosine"], rows, " ".join([shown, *why]))
    table = [
        [key, str(_batch_of(kind, batches)), _spread(values, 2)]
        for key, (pair, kind) in _keys().items()
        if (values := _per_round(rounds, *pair, kind, _batch_of(kind, batches)))
    ]
    terminal.show_table("ours over theirs", ["ratio", "batch", "median (least, most)"], table)


def _ratios(rounds: list[dict], batches: list[int]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for key, (pair, kind) in _keys().items():
        values = _per_round(rounds, *pair, kind, _batch_of(kind, batches))
        found[key] = round(statistics.median(values), 3) if values else None
    return found


def _batch_of(kind: str, batches: list[int]) -> int:
    """The batch size of a ratio: throughput at the largest, latency at the smallest."""
    return batches[-1] if kind == "images_s" else batches[0]


def _per_round(rounds: list[dict], ours: list[str], theirs: list[str], kind: str, batch: int) -> list[float]:
    """Ours over theirs in each round, the best of either; empty where a side is absent."""
    best = max if kind == "images_s" else min
    values = []
    for found in rounds:
        mine, other = (
            [getattr(found[name, batch], kind) for name in names if (name, batch) in found] for names in (ours, theirs)
        )
        if mine and other:
            values.append(best(mine) / best(other))
    return values


def _keys() -> dict[str, tuple[tuple[list[str], list[str]], str]]:
    """JSON key -> ((ours, theirs), ``images_s`` or ``latency``)."""
    engines = {f: [f"{name} {f}" for name in NAMES.values()] for f in ("fp16", "int8", "fp8")}
    compiled = [side for side in GPU_SIDES if side.startswith("compiled")]
    pairs = {
        "fp16_vs_torch_fp16": (engines["fp16"], ["torch fp16"]),
        "fp16_vs_compiled_fp16": (engines["fp16"], compiled),
        "int8_vs_fp16": (engines["int8"], engines["fp16"]),
        "int8_vs_compiled_fp16": (engines["int8"], compiled),
        "fp8_vs_fp16": (engines["fp8"], engines["fp16"]),
        "fp8_vs_compiled_fp16": (engines["fp8"], compiled),
        "cpu_fp32_vs_torch_fp32": (["engine fp32"], ["torch fp32"]),
        "cpu_fp32_vs_compiled_fp32": (["engine fp32"], ["compiled fp32"]),
        "cpu_int8_vs_fp32": (["engine int8 Q/DQ"], ["engine fp32"]),
        "cpu_int8_vs_compiled_fp32": (["engine int8 Q/DQ"], ["compiled fp32"]),
        "cpu_static_int8_vs_fp32": (["static int8"], ["engine fp32"]),
        "cpu_dynamic_int8_vs_fp32": (["dynamic int8"], ["engine fp32"]),
    }
    return {f"{key}_{kind}": (pair, kind) for kind in ("images_s", "latency") for key, pair in pairs.items()}


def _spread(values: list[float], digits: int | None = None) -> str:
    middle = statistics.median(values)
    digits = (0 if middle >= 100 else 1 if middle >= 10 else 2) if digits is None else digits
    return f"{middle:.{digits}f} ({min(values):.{digits}f}, {max(values):.{digits}f})"


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    name = torch.cpu.get_capabilities().get("cpu_name") or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} of {os.cpu_count()} threads"


if __name__ == "__main__":
    main()
