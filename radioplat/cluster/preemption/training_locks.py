"""Find the workers that train on this machine: each locks its own file while it trains.

The process alone is no sign: Ray Train keeps it until it starts another group, long after the worker has saved and
left. The kernel releases the lock when the process ends, for any reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from radioplat.common.private_folders import make_private, private_opener, require_private

_FOLDER = Path(f"/tmp/radioplat-training-{os.getuid()}")  # independent of TMPDIR


@contextlib.contextmanager
def training(folder: Path = _FOLDER) -> Iterator[None]:
    """List this process in :func:`training_workers` during the block; a failure to do so is ignored."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            make_private(folder)
            path = folder / str(os.getpid())
            file = stack.enter_context(open(path, "a", opener=private_opener))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(path.unlink, missing_ok=True)
        yield


def training_workers(folder: Path = _FOLDER) -> list[int]:
    """Return the process ids of the workers that train; none if the folder is not this user's own."""
    processes: list[int] = []
    try:
        require_private(folder)
    except OSError:
        return processes
    for path in folder.glob("[0-9]*"):
        try:
            with open(path, opener=private_opener) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)  # the process has ended
        except BlockingIOError:
            processes.append(int(path.name))
        except OSError:
            continue
    return processes
