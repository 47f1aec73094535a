"""Wait for an earlier process of the same task, which may take some seconds to end after its driver was killed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from radioplat.tracking.lease import NAME, Lease, LeaseTaken, held_by

Result = TypeVar("Result")
TIMEOUT_S = 60.0


def retry_lease(action: Callable[[], Result], timeout_s: float = TIMEOUT_S) -> Result:
    """Run ``action``, again while another process still has the lease of its folder.

    Raises:
        LeaseTaken: it still has it after ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            return action()
        except LeaseTaken:
            if time.monotonic() > until:
                raise
        time.sleep(1)


def wait_for_leases(folder: Path, say: Callable[[str], None], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until no process holds the lease of a folder at or below ``folder``.

    Args:
        folder: a results folder with those of the runs below it.
        say: called with a line for the user before a wait.
        timeout_s: for each lease.

    Raises:
        LeaseTaken: a process still has one after ``timeout_s``.
    """
    for path in sorted(folder.rglob(NAME)):
        if holder := held_by(path.parent):
            say(f"{path.parent} is still written by {holder}: waiting for at most {timeout_s:.0f} s")
        retry_lease(functools.partial(_taken, path.parent, say), timeout_s)


def _taken(folder: Path, say: Callable[[str], None]) -> None:
    """Take the lease of a folder and give it back; LeaseTaken as :class:`Lease` raises it."""
    if folder.is_dir():
        with Lease(folder, say):
            pass
