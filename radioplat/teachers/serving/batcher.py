"""Join requests of several students into one forward."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from radioplat.teachers.serving.packed_features import Packed

Forward = Callable[[np.ndarray, tuple[int, int], frozenset[str]], Packed]


@dataclass
class _Request:
    pixels: np.ndarray
    grid: tuple[int, int]
    wanted: frozenset[str]
    answer: Future = field(default_factory=Future)

    @property
    def kind(self) -> tuple:
        """Key of requests that can share a forward."""
        return self.pixels.shape[1:], self.grid, self.wanted


class Batcher:
    """Callable from any number of threads; one thread computes, and joins the requests that were queued meanwhile.

    It never waits for more requests: a single one runs at once. Results equal those of requests that run alone.

    Args:
        forward: see :class:`radioplat.teachers.serving.teacher_runner.TeacherRunner`.
        most: maximum number of rows of one forward.
    """

    def __init__(self, forward: Forward, most: int) -> None:
        self._forward, self._most = forward, most
        self._requests: queue.Queue[_Request] = queue.Queue()
        self._left: list[_Request] = []  # removed from the queue, not yet run
        self.waiting = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="teacher", daemon=True).start()

    def __call__(self, pixels: np.ndarray, grid: tuple[int, int], wanted: frozenset[str]) -> Packed:
        """Wait for the features of uint8 ``[B, 3, H, W]``; raises what the forward raises."""
        request = _Request(pixels, grid, wanted)
        with self._lock:
            self.waiting += 1
        try:
            self._requests.put(request)
            return request.answer.result()
        finally:
            with self._lock:
                self.waiting -= 1

    def _run(self) -> None:
        while True:
            together = self._next()
            try:
                features = self._forward(
                    np.concatenate([r.pixels for r in together]) if len(together) > 1 else together[0].pixels,
                    together[0].grid,
                    together[0].wanted,
                )
            except BaseException as error:
                for request in together:
                    request.answer.set_exception(error)
                continue
            start = 0
            for request in together:
                request.answer.set_result(features.rows(start, start + len(request.pixels)))
                start += len(request.pixels)

    def _next(self) -> list[_Request]:
        """Return the oldest request, and those of its kind that fit into the same forward."""
        if not self._left:
            self._left.append(self._requests.get())
        while True:
            try:
                self._left.append(self._requests.get_nowait())
            except queue.Empty:
                break
        together, rest, rows = [self._left[0]], [], len(self._left[0].pixels)
        for request in self._left[1:]:
            if request.kind == together[0].kind and rows + len(request.pixels) <= self._most:
                together.append(request)
                rows += len(request.pixels)
            else:
                rest.append(request)
        self._left = rest
        return together
