"""The kernels of some steps as torch's profiler records them, and what makes the host wait for the device."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.interleave import wait

TEACHER = "benchmark: a teacher's forward"  # name of the range that marks it
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaLaunchCooperativeKernel")
_WAITS = "called a synchronizing CUDA operation"
Interval = tuple[float, float]  # begin and end, in any unit
NOTHING: dict[str, Any] = {
    "idle_share": None,
    "busy_student": None,
    "busy_teachers": None,
    "overlap": None,
    "launches_per_micro_batch": None,
    "kernels_per_micro_batch": None,
    "host_syncs_per_micro_batch": None,
}  # on a CPU


def union(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def shares(student: list[Interval], teachers: list[Interval], wall: float) -> dict[str, float]:
    """Return the share of ``wall`` in which the device is idle, computes either, and computes both at once."""
    together, one, other = union(student + teachers), union(student), union(teachers)
    return {
        "idle_share": max(0.0, 1 - together / wall),
        "busy_student": one / wall,
        "busy_teachers": other / wall,
        "overlap": (one + other - together) / wall,
    }


class Recording:
    """The kernels between :meth:`start` and :meth:`stop`; nothing is recorded on a CPU.

    Kernels that are launched inside a range named :data:`TEACHER` are the teachers', all others the student's.
    """

    def __init__(self, device: str) -> None:
        self._device, self._profile = device, None

    def start(self) -> None:
        """Begin to record, in all threads."""
        if self._device == "cuda":
            wait(self._device)
            threads = _ExperimentalConfig(profile_all_threads=True)
            self._profile = profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], experimental_config=threads
            )
            self._profile.start()

    def stop(self, micro_batches: int, wall: float) -> dict[str, Any]:
        """Return the figures of ``micro_batches`` of this rank; all are None on a CPU.

        Args:
            wall: seconds that they take without the profiler, which makes the host slower and the device idle.
        """
        if self._profile is None:
            return dict(NOTHING)
        wait(self._device)
        self._profile.stop()
        found = kernels(self._profile.profiler.kineto_results.events(), wall)
        self._profile = None
        for name in ("launches", "kernels"):
            found[f"{name}_per_micro_batch"] = found.pop(name) / micro_batches
        return {**NOTHING, **found}


class HostSyncs:
    """Count how often the host waits for the device, as torch's debug mode reports it, until :meth:`stop`."""

    def __init__(self, device: str) -> None:
        self._cuda, self._stack, self._heard = device == "cuda", contextlib.ExitStack(), list[Any]()

    def start(self) -> None:
        """Begin to count, in all threads."""
        if self._cuda:
            self._heard = self._stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")

    def stop(self, micro_batches: int, wall: float) -> dict[str, float | None]:
        """Return the waits for each of ``micro_batches``; None on a CPU. ``wall`` is not needed."""
        if not self._cuda:
            return {"host_syncs_per_micro_batch": None}
        torch.cuda.set_sync_debug_mode("default")
        self._stack.close()
        heard = sum(_WAITS in str(warning.message) for warning in self._heard)
        return {"host_syncs_per_micro_batch": heard / micro_batches}


def look(step: Callable[[], object], steps: int, micro_batches: int, device: str, seconds: float) -> dict[str, Any]:
    """Record ``steps`` steps, and count the host's waits in as many others; see :class:`Recording`.

    Args:
        seconds: of a step, without the profiler.
    """
    found: dict[str, Any] = {}
    for watch in (Recording(device), HostSyncs(device)):
        watch.start()
        for _ in range(steps):
            step()
        found |= watch.stop(steps * micro_batches, steps * seconds)
    return found


def kernels(events: Iterable[Any], wall: float) -> dict[str, Any]:
    """Return :func:`shares` of events of kineto, and the numbers of ``launches`` and ``kernels``.

    Args:
        events: with ``name()``, ``device_type()``, ``start_ns()``, ``duration_ns()``, ``start_thread_id()`` and
            ``correlation_id()``.
        wall: seconds.
    """
    host, device = [], []
    for event in events:
        (host if event.device_type() == torch.autograd.DeviceType.CPU else device).append(event)
    ranges = [(e.start_thread_id(), e.start_ns(), e.start_ns() + e.duration_ns()) for e in host if e.name() == TEACHER]
    launched = [e for e in host if e.name().startswith(_LAUNCHES)]

    def inside(event: Any) -> bool:
        thread, at = event.start_thread_id(), event.start_ns()
        return any(thread == t and begin <= at <= end for t, begin, end in ranges)

    of_teachers = {e.correlation_id() for e in launched if inside(e)}
    mine, theirs = [], []
    for event in device:
        if event.name() == TEACHER or event.name().startswith(("Memcpy", "Memset")):
            continue  # the range itself, as the device saw it; copies leave the multiprocessors idle
        span = event.start_ns() / 1e9, (event.start_ns() + event.duration_ns()) / 1e9
        (theirs if event.correlation_id() in of_teachers else mine).append(span)
    return {**shares(mine, theirs, wall), "launches": len(launched), "kernels": len(mine) + len(theirs)}


class Parts:
    """Seconds of the parts of a step, by CUDA events; by the clock on a CPU.

    A part ends where :meth:`mark` is called with its name, and begins at the mark before. Marks are ignored before
    :meth:`start`, so that they cost nothing in steps whose rate is measured.
    """

    def __init__(self, device: str) -> None:
        self._cuda, self._on, self._marks = device == "cuda", False, list[tuple[str, Any]]()

    def start(self) -> None:
        """Note the marks that follow."""
        self._on = True

    def stop(self) -> None:
        """Ignore marks again."""
        self._on = False

    def mark(self, name: str) -> None:
        """End the part ``name``; an empty name begins a step."""
        if not self._on:
            return
        if not self._cuda:
            self._marks.append((name, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))

    def milliseconds(self, steps: int) -> dict[str, float]:
        """Return milliseconds of each part in a step, the mean of ``steps`` steps."""
        wait("cuda" if self._cuda else "cpu")
        total: dict[str, float] = {}
        for (_, before), (name, now) in zip(self._marks, self._marks[1:], strict=False):
            if name:
                span = before.elapsed_time(now) if self._cuda else 1e3 * (now - before)
                total[name] = total.get(name, 0.0) + span
        return {name: value / steps for name, value in total.items()}
