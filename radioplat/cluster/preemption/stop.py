"""Stop the runs whose commands run on this machine, found by the leases of their results folders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from radioplat.cluster.preemption.processes import Process
from radioplat.errors import PlacementError, Problem
from radioplat.tracking.lease import NAME, Holder, parse_holder

_DEPTH = 2  # folders below the given one: results/run/distill
_LOOK_S = 0.5


@dataclass
class Stopped:
    """The result of a stop of the runs below a folder.

    Attributes:
        signalled: holders of the leases whose processes got SIGTERM.
        remaining: those of ``signalled`` that still run.
        problems: one for each lease whose process got no signal although it may be a run of this machine.
    """

    signalled: list[Holder] = field(default_factory=list)
    remaining: list[Holder] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def stop(folder: Path, seconds: float) -> Stopped:
    """Send SIGTERM to each run below ``folder`` whose command runs on this machine (or container), and wait.

    A lease names the process and when it started. A process that started at another time got the number later, and is
    left alone; one whose lease does not say when it started is refused.

    Args:
        seconds: time to wait for their exit.
    """
    result = Stopped()
    for path, holder in _leases(folder):
        try:
            if holder is None:
                hint = "Stop the run by its process id, or delete the file if no run writes this folder."
                raise PlacementError("the lease is damaged, so its process was not asked to exit", hint=hint)
            if (process := _process_of(holder)) is not None:
                process.terminate()
                result.signalled.append(holder)
        except PlacementError as error:
            result.problems += [Problem(problem.message, str(path), problem.hint) for problem in error.problems]
    until = time.monotonic() + seconds
    while (remaining := [holder for holder in result.signalled if not holder.is_gone()]) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    result.remaining = remaining
    return result


def _leases(folder: Path) -> Iterator[tuple[Path, Holder | None]]:
    """Yield the leases of runs of this machine below ``folder``, with their holders; None for a damaged lease."""
    here = Holder.myself().place
    for depth in range(_DEPTH + 1):
        for path in sorted(Path(folder).glob("*/" * depth + NAME)):
            try:
                holder = parse_holder(path.read_bytes())
            except FileNotFoundError:  # its run has just ended
                continue
            except OSError:
                holder = None
            if holder is None or holder.place == here:
                yield path, holder


def _process_of(holder: Holder) -> Process | None:
    """Return the process that holds a lease; None if it has ended.

    Raises:
        PlacementError: the lease does not tell the process from a later one with the same number.
    """
    try:
        process = Process(holder.pid)
    except ProcessLookupError:
        return None
    if not holder.born.isdecimal():
        raise PlacementError(
            f"the lease does not say when process {holder.pid} started, so it was not asked to exit",
            hint=f"`kill -TERM {holder.pid}` does so, if that process is the run.",
        )
    return None if holder.is_gone() else process  # compared after the handle was opened: it cannot change any more
