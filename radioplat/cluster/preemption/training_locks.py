"""Which training workers are at work on this machine: each holds a lock on a file of its own while it trains.

The process alone tells nothing: Ray Train keeps it until it starts another group, long after it has saved and left. The
kernel gives a lock back with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_FOLDER = Path(f"/tmp/radioplat-training-{os.getuid()}")  # whatever TMPDIR is there and here


@contextlib.contextmanager
def training(folder: Path = _FOLDER) -> Iterator[None]:
    """While the block runs, this process is one of :func:`training_workers`. A machine that cannot is no obstacle."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / str(os.getpid())
            file = stack.enter_context(open(path, "w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(path.unlink, missing_ok=True)
        yield


def training_workers(folder: Path = _FOLDER) -> list[int]:
    """Process numbers."""
    found = []
    for path in folder.glob("[0-9]*"):
        try:
            with open(path) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)  # it died
        except BlockingIOError:
            found.append(int(path.name))
        except OSError:
            continue
    return found
