"""The phase of a worker: one at a time, so that each second belongs to exactly one."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

START, DATA, TEACHER, INLINE, STEP = "start", "data", "teacher", "inline teacher", "step"
COLLECTIVE, CHECKPOINT, VALIDATION = "collective", "checkpoint", "validation"
WAITS = frozenset({DATA, TEACHER})  # for others, who have limits of their own
# Work without steps of its own to count: there the thread's frames and CPU time tell whether it moves.
LONG = frozenset({START, CHECKPOINT, VALIDATION})


class Phases:
    """The phase of the thread that makes this; it alone changes it, others look.

    Attributes:
        position: global step and micro-batch of this rank that it is at; (-1, 0) before the first step.
        moves: grows with each sign of progress.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._stack = [START]
        self._since = time.monotonic()
        self._seconds: dict[str, float] = defaultdict(float)
        self.position = (-1, 0)
        self.moves = 0

    @property
    def now(self) -> str:
        """The phase of this moment."""
        return self._stack[-1]

    def seconds(self, phase: str) -> float:
        """Spent in ``phase`` so far, without the phases inside it."""
        running = time.monotonic() - self._since if self.now == phase else 0.0
        return self._seconds[phase] + running

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """``phase`` for the time of the block; then the one before goes on."""
        self._turn()
        self._stack.append(phase)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def at(self, step: int, micro_batch: int = 0) -> None:
        """The thread has come to this micro-batch of this step; start-up is over."""
        self._turn()
        self._stack[0] = STEP
        self.position = (step, micro_batch)

    def mark(self) -> tuple[object, ...]:
        """Equal at two moments where the thread has made no progress between them."""
        phase = self.now
        if phase not in LONG:
            return (self.moves, self.position)
        places, frame = [], sys._current_frames().get(self._thread)
        while frame is not None:
            places.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return (self.moves, phase, self._worked(), *places)

    def _worked(self) -> float:
        """CPU seconds of the thread, in hundredths: a long call, such as writing a large file, moves no frame."""
        if not hasattr(time, "pthread_getcpuclockid"):  # macOS
            return 0.0
        return round(time.clock_gettime(time.pthread_getcpuclockid(self._thread)), 2)

    def _turn(self) -> None:
        now = time.monotonic()
        self._seconds[self.now] += now - self._since
        self._since = now
        self.moves += 1
