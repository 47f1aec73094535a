"""Stop the runs whose commands run on this machine, found by the leases of their results folders."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from radioplat.tracking.lease import NAME, Holder, read_holder

_DEPTH = 2  # folders below the given one: results/run/distill
_LOOK_S = 0.5


def stop(folder: Path, seconds: float) -> tuple[list[Holder], list[Holder]]:
    """Send SIGTERM to each run below ``folder`` whose command runs on this machine (or container), and wait.

    Returns:
        Holders of the leases of all these runs, and of those that still run after ``seconds``.
    """
    local = holders(folder)
    for holder in local:
        _ask(holder)
    until = time.monotonic() + seconds
    while (remaining := [holder for holder in local if not holder.is_gone()]) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return local, remaining


def _ask(holder: Holder) -> None:
    """Send SIGTERM to the process of a holder, and to no other that has its process id since."""
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(holder.pid)
        try:
            if not holder.is_gone():  # what is open now is the process that held the lease
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)


def holders(folder: Path) -> list[Holder]:
    """Return the lease holders of runs below ``folder`` whose commands run on this machine."""
    here = Holder.myself().place
    local = []
    for depth in range(_DEPTH + 1):
        for path in Path(folder).glob("*/" * depth + NAME):
            holder = read_holder(path)
            if holder is not None and holder.place == here and not holder.is_gone():
                local.append(holder)
    return local
