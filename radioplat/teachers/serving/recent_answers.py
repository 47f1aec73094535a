"""The last answers of a replica, so that equal requests, of several runs or of restarted workers, are computed once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from radioplat.teachers.serving.packed_features import Packed


def request_key(pixels: np.ndarray) -> bytes:
    """Return 16 bytes that identify the pixels of a request."""
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16)
    digest.update(repr((pixels.shape, str(pixels.dtype))).encode())
    return digest.digest()


class RecentAnswers:
    """Answers by request, the oldest of which are dropped once all have more than ``most`` bytes; thread-safe.

    Attributes:
        repeated: requests that were not computed.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._answers: OrderedDict[tuple, Future[Packed]] = OrderedDict()
        self._bytes = 0
        self.repeated = 0

    def get(self, key: tuple, compute: Callable[[], Packed]) -> Packed:
        """Return the answer to ``key``; of equal requests at the same time one computes, and the others wait for it.

        The seconds of a repeated answer are 0: the request that computed it pays for it. An error is raised by all that
        wait for it, and not kept.
        """
        with self._lock:
            known = self._answers.get(key)
            if known is None:
                mine: Future[Packed] = Future()
                self._answers[key] = mine
            else:
                self._answers.move_to_end(key)
                self.repeated += 1
        if known is not None:
            return known.result().taking(0.0)
        try:
            answer = compute()
        except BaseException as error:
            with self._lock:
                self._answers.pop(key, None)
            mine.set_exception(error)
            raise
        mine.set_result(answer)
        self._keep(answer)
        return answer

    def _keep(self, answer: Packed) -> None:
        with self._lock:
            self._bytes += answer.nbytes
            for key, old in list(self._answers.items()):
                if self._bytes <= self._most:
                    break
                if old.done():
                    del self._answers[key]
                    self._bytes -= old.result().nbytes
