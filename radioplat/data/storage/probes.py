"""During an outage one read tries whether a bucket answers again; the other reads that wait for the bucket wait for it.

This holds for the threads of a process, and for the processes of a machine that share a folder of temporary files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path

from radioplat.common.private_folders import make_private, private_opener, require_private
from radioplat.data.storage.object_stores import endpoint
from radioplat.data.storage.request_rate import root_of, waited
from radioplat.spec.resolved.paths import is_remote

FIRST_PAUSE_S = 1.0  # between two tries; each is twice the previous one
LONGEST_PAUSE_S = 5.0  # where one read tries for all
LONGEST_PAUSE_ALONE_S = 15.0  # where each read tries for itself
_LOOK_S = 0.5  # how often a waiting read looks whether the bucket answered another process
_LONGEST_TRY_S = 60.0  # a try that takes longer holds up no other


def probes_of(path: str) -> Probes:
    """Return what the reads of this process share that wait for the bucket or folder of ``path``."""
    return _probes(root_of(path), endpoint())


class _Marks:
    """Files whose times tell the processes of this machine when a bucket was last tried, and when it answered a try.

    They are empty, so they cannot be torn. If they cannot be written, or if their folder is not this user's alone, each
    process tries for itself.
    """

    def __init__(self, root: str, address: str | None) -> None:
        name = hashlib.sha256(f"{root} {address}".encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"radioplat_storage_{os.getuid()}"
        self._tried, self._answered = self._folder / f"{name}.tried", self._folder / f"{name}.answered"

    def tried(self) -> None:
        """Say that this process tries now."""
        self._touch(self._tried)

    def answered(self) -> None:
        """Say that a try succeeded."""
        self._touch(self._answered)

    def seconds_since_try(self) -> float:
        """Return how long ago a process tried; the clock may have been set since, then it means nothing."""
        return time.time() - self._time(self._tried) / 1e9

    def last_answer(self) -> int:
        """Return a number that changes when the bucket answers a try of any process."""
        return self._time(self._answered)

    def _touch(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            make_private(self._folder)
            with open(path, "a", opener=private_opener) as file:
                os.utime(file.fileno())

    def _time(self, path: Path) -> int:
        try:
            require_private(self._folder)
            return path.lstat().st_mtime_ns
        except OSError:
            return 0


class Probes:
    """Which of the reads that wait for a bucket may try, and when; thread-safe."""

    def __init__(self, marks: _Marks | None) -> None:
        self._marks = marks
        self._changed = threading.Condition()
        self._next = 0.0  # no try is made before
        self._pause = 0.0  # the last one; 0: none since a success
        self._successes = 0

    def wait(self, tried: bool, until: float) -> bool:
        """Wait until it is this read's turn to try, until another read's try succeeded, or until the time ``until``.

        Args:
            tried: whether it had the turn, and its try failed.

        Returns:
            Whether it has the turn. Then :meth:`wait`, :meth:`failed` or :meth:`succeeded` is called after its try.
        """
        with self._changed:
            before, answer = self._successes, self._marks.last_answer() if self._marks else 0
            if tried or time.monotonic() >= self._next:  # a try failed, or none is planned
                self._plan()
            while self._successes == before and (now := time.monotonic()) < until:
                if self._marks and self._marks.last_answer() != answer:
                    self._let_on()
                elif now < self._next:
                    self._changed.wait(min(self._next - now, until - now, _LOOK_S))
                elif not self._another_process_tried(now):
                    self._next = now + _LONGEST_TRY_S
                    return True
            succeeded = self._successes > before
        if succeeded:
            _spread(until)
        return False

    def wait_alone(self, until: float) -> None:
        """Wait until the time ``until``, or until a read of another file succeeded after a wait."""
        with self._changed:
            before = self._successes
            if not self._changed.wait_for(lambda: self._successes > before, max(0.0, until - time.monotonic())):
                return
        _spread(until)

    def failed(self) -> None:
        """The read that has the turn ended without an answer of the store."""
        with self._changed:
            self._plan()

    def succeeded(self) -> None:
        """A waiting read got an answer: all others may try."""
        if self._marks:
            self._marks.answered()
        with self._changed:
            self._let_on()

    def _let_on(self) -> None:
        self._successes += 1
        self._next = self._pause = 0.0
        self._changed.notify_all()

    def _another_process_tried(self, now: float) -> bool:
        """Return True, and put off the next try, if another process just tried; else note that this one does."""
        if self._marks is None:
            return False
        seconds = self._marks.seconds_since_try()
        if 0 <= seconds < 0.7 * self._pause:
            self._next = now + jittered(self._pause) - seconds
            waited()  # this process may not try for long, and yet its reads do not hang
            return True
        self._marks.tried()
        return False

    def _plan(self) -> None:
        """Plan the next try."""
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S) if self._pause else FIRST_PAUSE_S
        self._next = time.monotonic() + jittered(self._pause)
        self._changed.notify_all()


def jittered(pause: float) -> float:
    """Return a random share of ``pause``, so that readers that failed together do not retry together."""
    return pause * random.uniform(0.7, 1.0)


def _spread(until: float) -> None:
    """Sleep for a random time, so that the reads that a success lets on do not all come at once."""
    time.sleep(max(0.0, min(random.uniform(0, FIRST_PAUSE_S), until - time.monotonic())))


@lru_cache(maxsize=256)
def _probes(root: str, address: str | None) -> Probes:
    return Probes(_Marks(root, address) if is_remote(root) else None)
