"""Times of functions that run in turn, each until it is steady before it counts: how every latency is measured.

Functions that are compared run in turn, so that a machine that becomes slower is slower for all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

# Calls of one window of the warm-up, which ends when two medians in a row differ by at most STEADY.
WINDOW, STEADY, WARM_UP_SECONDS = 10, 0.03, 3.0
LEAST_CALLS, MOST_CALLS = 30, 2000
SETTLE, TURN_SECONDS = 5, 0.15  # of an engine in each turn: calls that do not count, and the least time


@dataclass(frozen=True)
class Latency:
    """Times of a batch, in milliseconds.

    Attributes:
        p50, p90, p99: percentiles.
        calls: number of measured calls.
        warm_up: number of calls before them.
        steady: whether the warm-up ended because the times were steady, not because of its limit.
    """

    p50: float
    p90: float
    p99: float
    calls: int
    warm_up: int
    steady: bool


def measure_in_turn(timers: Mapping[str, Callable[[], float]], seconds: float) -> dict[str, Latency]:
    """Warm each function up, then call them in turn for ``seconds`` each, at least ``LEAST_CALLS`` times.

    Args:
        timers: functions that return the milliseconds of a call, by name.
    """
    warm = {name: _warm_up(call) for name, call in timers.items()}
    times: dict[str, list[float]] = {name: [] for name in timers}
    until = time.monotonic() + seconds * len(timers)
    while (rounds := min(map(len, times.values()))) < LEAST_CALLS or time.monotonic() < until:
        if rounds >= MOST_CALLS:
            break
        for name, call in timers.items():
            for _ in range(SETTLE):
                call()  # the caches still hold another engine's data
            turn = time.monotonic() + TURN_SECONDS
            times[name] += [call() for _ in range(WINDOW)]
            while time.monotonic() < turn:
                times[name].append(call())
    return {name: _latency(times[name], *warm[name]) for name in timers}


def _warm_up(call: Callable[[], float]) -> tuple[int, bool]:
    """Call until two windows are alike; return the number of calls, and whether they are."""
    until, count, before = time.monotonic() + WARM_UP_SECONDS, 0, 0.0
    while True:
        now = statistics.median(call() for _ in range(WINDOW))
        count += WINDOW
        if abs(now - before) <= STEADY * now:
            return count, True
        if time.monotonic() > until:
            return count, False
        before = now


def _latency(times: list[float], warm_up: int, steady: bool) -> Latency:
    p50, p90, p99 = (round(float(value), 4) for value in np.percentile(times, (50, 90, 99)))
    return Latency(p50, p90, p99, len(times), warm_up, steady)
