"""Report storage outages to the user: a line when processes of the run begin to wait, one when they go on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from radioplat.data.storage.outage import WaitNote, forget_waits, read_waits
from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.tracking.attempts.goodput import FILE, STORAGE
from radioplat.tracking.json_lines import append_line
from radioplat.tracking.status import StatusLog

EVERY_S = 1.0
QUIET_S = 5.0  # an outage is over after so long without a wait; shorter breaks do not end it
_PAUSES_S = 60.0  # the longest time between two notes of a waiting process, in addition to the read itself


class StorageWatch:
    """A thread that reads the notes of waiting processes, while the block runs.

    Args:
        folder: of the task; its data folder contains the notes, and the length of each outage is added to its accounts.
        status: gets a WARNING when an outage begins, and a line when it is over.
        say: gets the same lines, for the user.
    """

    def __init__(self, folder: Path, dataset: DatasetConfig, status: StatusLog, say: Callable[[str], None]) -> None:
        self._accounts, self._folder, self._status, self._say = folder / FILE, folder / "data", status, say
        self._limit = dataset.storage_timeout_s
        self._stale = _PAUSES_S + 2 * dataset.read_timeout_s
        self._notes: dict[str, tuple[WaitNote, float]] = {}  # by process: its note, and the time of its last change
        self._began: float | None = None  # of the outage
        self._last = 0.0  # the last time that a process waited
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage watch", daemon=True)

    def __enter__(self) -> StorageWatch:
        forget_waits(self._folder)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self._stop.set()
        self._thread.join(10.0)  # the thread may hang if the results are on the same storage
        if kind is None and self._began is not None and not self._waits():
            self._over()
        elif self._began is not None:
            self._count()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        now, waits = time.monotonic(), self._waits()
        if waits:
            self._last = now
            if self._began is None:
                first = max(waits, key=lambda note: note.seconds)
                self._began = now - first.seconds
                self._tell(
                    f"waiting for storage: {first.path} cannot be read: {first.answer}. The run pauses until it can, "
                    f"for {self._limit:g} s at most (dataset.storage_timeout_s)",
                    "WARNING",
                )
        elif self._began is not None and now - self._last > QUIET_S:
            self._over()

    def _over(self) -> None:
        assert self._began is not None
        self._count()
        self._tell(f"storage can be read again, after {self._last - self._began:.0f} s; the run goes on", "INFO")
        self._began = None

    def _count(self) -> None:
        """Add the outage to the run's accounts."""
        assert self._began is not None
        line = {"event": STORAGE, "time": time.time(), "seconds": max(0.0, self._last - self._began)}
        with contextlib.suppress(OSError):  # accounting must not end a run
            append_line(self._accounts, line)

    def _tell(self, line: str, verbosity: str) -> None:
        self._status.write(line, verbosity=verbosity)
        self._say(line)

    def _waits(self) -> list[WaitNote]:
        """Return the notes of processes that wait now. A note that no longer changes is from a process that ended."""
        now, notes = time.monotonic(), read_waits(self._folder)
        old = self._notes
        self._notes = {
            name: old[name] if name in old and old[name][0] == note else (note, now) for name, note in notes.items()
        }
        return [note for note, since in self._notes.values() if now - since < self._stale]
