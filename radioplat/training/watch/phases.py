"""Track the phase of a worker; there is exactly one at a time, so that each second is counted once."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

START, DATA, TEACHER, INLINE, STEP = "start", "data", "teacher", "inline teacher", "step"
COLLECTIVE, CHECKPOINT, VALIDATION = "collective", "checkpoint", "validation"
WAITS = frozenset({DATA, TEACHER})  # for data or teachers; those waits have separate time limits
# Phases without steps to count: the thread's stack frames and CPU time show if it makes progress.
LONG = frozenset({START, CHECKPOINT, VALIDATION})


class Phases:
    """The phase of the thread that creates this object; only that thread changes it, other threads read it.

    Attributes:
        position: current global step and index of this rank's micro-batch in it; (-1, 0) before the first step.
        moves: counter that increases with each sign of progress.
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
        """The current phase."""
        return self._stack[-1]

    def seconds(self, phase: str) -> float:
        """Return the seconds spent in ``phase`` so far, without those of phases inside it."""
        running = time.monotonic() - self._since if self.now == phase else 0.0
        return self._seconds[phase] + running

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Set the phase to ``phase`` during the block; restore the previous phase afterwards."""
        self._turn()
        self._stack.append(phase)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def at(self, step: int, micro_batch: int = 0) -> None:
        """Set the position to this micro-batch of this step; the first call ends the start-up phase."""
        self._turn()
        self._stack[0] = STEP
        self.position = (step, micro_batch)

    def mark(self) -> tuple[object, ...]:
        """Return a value that is equal at two times if the thread made no progress between them."""
        phase = self.now
        if phase not in LONG:
            return (self.moves, self.position)
        places, frame = [], sys._current_frames().get(self._thread)
        while frame is not None:
            places.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return (self.moves, phase, self._worked(), *places)

    def _worked(self) -> float:
        """Return the thread's CPU seconds, to 0.01: its frames do not change during a long call."""
        if not hasattr(time, "pthread_getcpuclockid"):  # macOS
            return 0.0
        return round(time.clock_gettime(time.pthread_getcpuclockid(self._thread)), 2)

    def _turn(self) -> None:
        now = time.monotonic()
        self._seconds[self.now] += now - self._since
        self._since = now
        self.moves += 1
