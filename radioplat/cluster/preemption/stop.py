"""Asking the runs whose commands live on this machine to save and leave, by the leases of their results folders."""

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
    """SIGTERM to each run below ``folder`` that this machine (or container) has the command of, and wait for its end.

    Returns:
        Who was asked, and who of them is still there after ``seconds``.
    """
    asked = holders(folder)
    for holder in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
    until = time.monotonic() + seconds
    while (left := [holder for holder in asked if not holder.is_gone()]) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return asked, left


def holders(folder: Path) -> list[Holder]:
    """Runs below ``folder`` whose commands live here."""
    here = Holder.myself().place
    found = []
    for depth in range(_DEPTH + 1):
        for path in Path(folder).glob("*/" * depth + NAME):
            holder = read_holder(path)
            if holder is not None and holder.place == here and not holder.is_gone():
                found.append(holder)
    return found
