"""What does a micro-batch of a training loop launch, and how much CPU time does it take? Imports nothing of radioplat.

``python -m benchmarks.judges.step_counts [--time] [--part NAME=METHOD ...] MODULE:FUNCTION [ARGUMENT ...]`` calls the
function, a command line's entry point, with these arguments, and counts in the thread that calls the optimizer. A
``--part`` is a METHOD, a MODULE:CLASS.METHOD, whose calls are counted apart; what runs in none of them is the ``loop``.
A part inside another one belongs to the inner one alone.

Without ``--time`` it counts collectives of torch.distributed, as `benchmarks.judges.host_reads` does, and operators
that would launch kernels on a GPU: all that reach the dispatcher, in forward and backward passes and optimizers, but
views, allocations and reads of metadata. A ``_foreach`` operator counts once. No graph is compiled in that mode.

With ``--time`` it measures the CPU time of that thread (``time.thread_time``), so that waiting and other threads do not
count, and counts nothing else.

Steps are counted by the optimizer, micro-batches by calls of ``backward``; the first two steps and the last are left
out. The last line on stdout is one JSON object, by part: operators a micro-batch, or the median over steps of
milliseconds a micro-batch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import threading
import time
from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.judges.host_reads import LEFT_OUT, Counts, call, count_collectives, mark_steps, summary

LOOP = "loop"
SHOWN = 12  # operators that are listed for each part
# Neither views nor kernels: allocations, and what reads a number out of a tensor (`host_reads` counts that).
_NO_KERNEL = {
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_", "set_", "detach", "detach_",
    "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "_local_scalar_dense", "is_pinned", "record_stream",
    "_has_compatible_shallow_copy_type", "is_same_size", "stride", "size", "sym_size", "sym_stride", "sym_numel",
}  # fmt: skip


class PartCounts(Counts):
    """Events by the part in which this thread is, and the CPU seconds of each part."""

    def __init__(self) -> None:
        super().__init__()
        self._stacks: dict[int, list[str]] = {}
        self._since: dict[int, float] = {}

    @property
    def part(self) -> str:
        """The part in which this thread is."""
        return self._stack()[-1]

    def launch(self, operator: str) -> None:
        """Count an operator."""
        self._counter()[f"launch {self.part} {operator}"] += 1

    def enter(self, part: str) -> None:
        """Begin a call of ``part``."""
        self._spend()
        self._stack().append(part)

    def leave(self) -> None:
        """End the innermost call."""
        self._spend()
        self._stack().pop()

    def stepped(self) -> None:
        """End a step of this thread."""
        self._spend()
        super().stepped()

    def _spend(self) -> None:
        now, thread = time.thread_time(), threading.get_ident()
        # Counters hold whole numbers: nanoseconds.
        self._counter()[f"cpu {self.part}"] += round(1e9 * (now - self._since.get(thread, now)))
        self._since[thread] = now

    def _stack(self) -> list[str]:
        return self._stacks.setdefault(threading.get_ident(), [LOOP])


class _Launches(TorchDispatchMode):
    def __init__(self, counts: PartCounts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        name = func.overloadpacket.__name__
        if func.namespace not in ("c10d", "profiler") and not func.is_view and name not in _NO_KERNEL:
            self._counts.launch(name)
        return func(*args, **(kwargs or {}))


def split(counts: PartCounts, name: str, place: str) -> None:
    """Count the calls of the method ``place``, a MODULE:CLASS.METHOD, as part ``name``."""
    module, _, path = place.partition(":")
    *classes, method = path.split(".")
    owner = importlib.import_module(module)
    for each in classes:
        owner = getattr(owner, each)
    function = getattr(owner, method)

    def counted(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        counts.enter(name)
        try:
            return function(*given, **named)
        finally:
            counts.leave()

    setattr(owner, method, counted)


def launches(counts: PartCounts) -> dict[str, Any]:
    """Return the operators a micro-batch, in all and by part, and the most frequent ones of each part."""
    total, micro_batches = _of_steps(counts)
    by_part: dict[str, Counter[str]] = {}
    for event, number in total.items():
        if event.startswith("launch "):
            *part, operator = event.split(" ")[1:]
            by_part.setdefault(" ".join(part), Counter())[operator] += number
    sums = {part: round(sum(names.values()) / micro_batches, 2) for part, names in sorted(by_part.items())}
    most = {p: {n: round(k / micro_batches, 2) for n, k in names.most_common(SHOWN)} for p, names in by_part.items()}
    return {"launches_a_micro_batch": round(sum(sums.values()), 2), "launches": sums, "most_frequent": most}


def cpu_times(counts: PartCounts) -> dict[str, Any]:
    """Return the median over steps of the milliseconds of CPU time a micro-batch, by part."""
    steps = max(counts.steps.values(), key=len)[LEFT_OUT:-1]
    parts = sorted({event for step in steps for event in step if event.startswith("cpu ")})
    each = {p.removeprefix("cpu "): [step[p] / step["micro_batch"] / 1e6 for step in steps] for p in parts}
    return {"steps": len(steps), "cpu_ms": {part: round(statistics.median(ms), 3) for part, ms in each.items()}}


def _of_steps(counts: PartCounts) -> tuple[Counter[str], int]:
    total: Counter[str] = sum(max(counts.steps.values(), key=len)[LEFT_OUT:-1], Counter())
    return total, total["micro_batch"]


def main() -> None:
    """Count or measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--own", help="the package whose collectives are judged; default: the first part of MODULE")
    parser.add_argument("--time", action="store_true", help="measure CPU time, and count nothing")
    parser.add_argument("--part", action="append", default=[], metavar="NAME=METHOD")
    parser.add_argument("entry", metavar="MODULE:FUNCTION")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    counts = PartCounts()
    for part in given.part:
        split(counts, *part.split("=", 1))
    mark_steps(counts)
    if given.time:
        call(given.entry, given.arguments)
        print(json.dumps(cpu_times(counts)))
        return
    count_collectives(counts)
    with _Launches(counts):
        call(given.entry, given.arguments)
    own = given.own or given.entry.split(".")[0]
    print(json.dumps({**summary(counts, own, ("collective",)), **launches(counts)}))


if __name__ == "__main__":
    sys.exit(main())
