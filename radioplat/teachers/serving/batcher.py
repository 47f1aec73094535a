"""Join requests of several students into one forward."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radioplat.teachers.serving.packed_features import Packed

Forward = Callable[[np.ndarray, tuple[int, int], frozenset[str]], Any]
_STARTED = 2  # forwards: one computes, and the pixels of the next are copied


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
    A second thread waits for the results, so that on a GPU the next forward is started while one computes.

    Args:
        forward: runs or starts a forward, see :class:`radioplat.teachers.serving.teacher_runner.TeacherRunner`.
        most: maximum number of rows of one forward.
        finish: waits for what ``forward`` returned, and returns the features.
    """

    def __init__(self, forward: Forward, most: int, finish: Callable[[Any], Packed] = lambda packed: packed) -> None:
        self._forward, self._most, self._finish = forward, most, finish
        self._free = threading.Semaphore(_STARTED)
        self._started: queue.Queue[tuple[list[_Request], Any]] = queue.Queue()
        self._requests: queue.Queue[_Request] = queue.Queue()
        self._left: list[_Request] = []  # removed from the queue, not yet run
        self.waiting = 0
        self._lock = threading.Lock()
        for name, run in (("teacher", self._run), ("answers", self._answer)):
            threading.Thread(target=run, name=name, daemon=True).start()

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
            self._free.acquire()  # before the choice: requests that come while this waits are joined too
            together = self._next()
            try:
                started = self._forward(
                    np.concatenate([r.pixels for r in together]) if len(together) > 1 else together[0].pixels,
                    together[0].grid,
                    together[0].wanted,
                )
            except BaseException as error:
                self._free.release()
                _fail(together, error)
                continue
            self._started.put((together, started))
            del together, started  # else they stay in memory while this thread waits

    def _answer(self) -> None:
        while True:
            together, started = self._started.get()
            try:
                features = self._finish(started)
            except BaseException as error:
                _fail(together, error)
                continue
            finally:
                self._free.release()
            start = 0
            for request in together:
                request.answer.set_result(features.rows(start, start + len(request.pixels)))
                start += len(request.pixels)
            del together, started, features, request

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


def _fail(requests: list[_Request], error: BaseException) -> None:
    for request in requests:
        request.answer.set_exception(error)
