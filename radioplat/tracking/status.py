"""``status.json``: the machine-readable log of a task, one JSON object a line (TAO's format)."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from radioplat.common.redact import redact_tree
from radioplat.tracking.json_lines import parse_line, read_lines

_BLOCK = 1 << 16  # bytes at the end of a file that are read for its last line


class Status(str, Enum):
    """State of a task."""

    STARTED = "STARTED"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    SKIPPED = "SKIPPED"


class StatusLog:
    """Writer of one ``status.json``; a resumed run appends to it, and each line is written at once, as a whole.

    Values of secret environment variables are masked, and a number that is not finite becomes ``null``, as JSON
    requires. Several threads and processes may write. On a full disk lines wait in memory until there is space.

    Args:
        path: the file; its folder is created. An incomplete last line of a killed run is removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_tail(self.path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._waiting = b""  # what could not be written yet
        self._lock = threading.Lock()

    def write(
        self,
        message: str,
        status: Status | str = Status.RUNNING,
        *,
        kpi: Mapping[str, Any] | None = None,
        verbosity: str = "INFO",
        **fields: Any,
    ) -> None:
        """Append one line.

        Args:
            message: text for the user.
            status: see :class:`Status`; any other value raises ``ValueError``.
            kpi: numbers by name, e.g. ``{"loss/clip/summary": 0.3}``; tensors and arrays of one element are accepted.
            verbosity: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``.
            fields: further fields of the line.
        """
        now = datetime.datetime.now()
        masked = _plain(redact_tree({"message": message, "kpi": dict(kpi or {}), "fields": fields}))
        line = {
            "date": f"{now.month}/{now.day}/{now.year}",
            "time": now.strftime("%H:%M:%S"),
            "status": Status(status).value,
            "verbosity": verbosity,
            "message": masked["message"],
            "kpi": masked["kpi"],
            **masked["fields"],
        }
        # ASCII only, since Unicode line separators inside a message would split the line for some readers.
        text = json.dumps(line, allow_nan=False)
        with self._lock:
            self._waiting += text.encode() + b"\n"
            self._write_waiting()

    def progress(
        self,
        *,
        epoch: int,
        max_epoch: int,
        step: int,
        max_step: int,
        seconds_per_step: float,
        steps_per_epoch: int,
        kpi: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a RUNNING line with ``epoch, max_epoch, step, max_step, time_per_epoch, time_per_step, eta``.

        Args:
            epoch, max_epoch: the epoch, counted from 0, and the number of epochs.
            step, max_step: optimizer steps done since the run's first start, and their total number.
            seconds_per_step: a recent mean, from which ``eta`` and ``time_per_epoch`` are computed.
            steps_per_epoch: steps in an epoch.
        """
        left = max(max_step - step, 0)
        self.write(
            f"step {step} of {max_step}",
            kpi=kpi,
            epoch=epoch,
            max_epoch=max_epoch,
            step=step,
            max_step=max_step,
            time_per_epoch=_duration(seconds_per_step * steps_per_epoch),
            time_per_step=_duration(seconds_per_step),
            eta=_duration(seconds_per_step * left),
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._write_waiting()
            with contextlib.suppress(OSError):  # also of a second call
                os.close(self._file)
            self._file = -1

    def _write_waiting(self) -> None:
        """Write what waits, alone among the processes that write the file; after :meth:`close` nothing is written."""
        if self._file < 0:
            return
        with contextlib.suppress(OSError), _alone(self._file):
            while self._waiting:
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]

    def __enter__(self) -> StatusLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_status(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the lines of a ``status.json``, oldest first; empty if there is no file yet.

    A line that is not a JSON object (the last one of a run that is writing or was killed) is skipped.
    """
    return read_lines(path)


def _cut_torn_tail(path: Path) -> None:
    """Remove what stands behind the last line end; only the end of the file is read."""
    if not path.exists():
        return
    with path.open("rb+") as file, _alone(file.fileno()):
        begin = size = file.seek(0, os.SEEK_END)
        tail = b""
        while begin and b"\n" not in tail:
            begin = max(0, size - max(2 * len(tail), _BLOCK))
            file.seek(begin)
            tail = file.read(size - begin)
        tail = tail[tail.rfind(b"\n") + 1 :]
        if not tail:
            return
        if parse_line(tail) is None:
            file.truncate(size - len(tail))
        else:  # the object is complete and only its line end is missing
            file.seek(size)
            file.write(b"\n")


@contextlib.contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Hold the file's lock, where the file system has locks: a line that is being written looks like a torn one."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _plain(value: Any) -> Any:
    """Convert a value to JSON types; numpy and torch values by ``tolist``."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(inner) for inner in value]
    return str(value)


def _duration(seconds: float) -> str | None:
    """Format a duration as TAO does, ``H:MM:SS.ffffff``; None if it is unknown."""
    if not math.isfinite(seconds) or seconds > 1e9:
        return None
    return str(datetime.timedelta(seconds=round(seconds, 3)))
