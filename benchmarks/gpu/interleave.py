"""Time several ways to do the same step in turn, so that a slow second of the machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Step = Callable[[], object]
ROUNDS, WARM_UP = 5, 3


def wait(device: str) -> None:
    """Wait until a GPU has done all that was enqueued; nothing on a CPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def agreed(number: float, device: str) -> float:
    """Return rank 0's number on every rank."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return number
    value = torch.tensor([number], dtype=torch.float64, device=device)
    dist.broadcast(value, 0)
    return float(value.item())


def block(step: Step, steps: int, device: str) -> float:
    """Return the wall seconds of a step, over ``steps`` of them."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - begin) / steps


def in_turn(sides: dict[str, Step], seconds: float, device: str) -> dict[str, list[float]]:
    """Return the seconds of a step of each side, one number for each of :data:`ROUNDS` rounds.

    Each side is first warmed up, which compiles it. Every other round goes the other way round.

    Args:
        seconds: for all rounds of all sides, without the warm-up.
    """
    for step in sides.values():
        for _ in range(WARM_UP):
            step()
    once = {name: agreed(block(step, 1, device), device) for name, step in sides.items()}
    each = seconds / ROUNDS / len(sides)
    count = {name: max(1, round(each / max(once[name], 1e-6))) for name in sides}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            times[name].append(block(sides[name], count[name], device))
    return times


def speeds(times: dict[str, list[float]], images: int) -> dict[str, Any]:
    """Return images/s of each side, and the ratio of ``ours`` to ``by_hand`` taken inside each round.

    Args:
        times: as :func:`in_turn` returns.
        images: of a step, over all ranks.

    Returns:
        By side ``images_per_s`` and ``spread`` (least and most); ``ratio`` likewise, if both sides are there.
    """
    found: dict[str, Any] = {
        name: {**summary([images / t for t in of_side], "images_per_s"), "step_ms": 1e3 * statistics.median(of_side)}
        for name, of_side in times.items()
    }
    if {"ours", "by_hand"} <= times.keys():
        ratios = [theirs / mine for mine, theirs in zip(times["ours"], times["by_hand"], strict=True)]
        found["ratio"] = summary(ratios, "median")
    return found


def summary(values: list[float], name: str) -> dict[str, Any]:
    """Return the median under ``name``, and ``spread``, least and most."""
    return {name: statistics.median(values), "spread": [min(values), max(values)]}
