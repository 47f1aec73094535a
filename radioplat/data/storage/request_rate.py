"""Limit the rate of requests to a bucket that throttles, for all threads of this process together.

The first throttling answer limits all requests to the bucket, first tries included, as the adaptive retry mode of AWS's
SDKs does: a token bucket whose rate falls with throttling answers and grows with successes, along the curve of TCP
CUBIC (RFC 9438). Processes share no state: each finds its share of the store's rate by itself, as TCP connections do on
a link. Without a limit, a request costs the note of its time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from radioplat.spec.resolved.paths import is_remote

FIRST_RATE, LOWEST_RATE = 10.0, 0.5  # requests a second: at least at the first throttling answer, and ever
LONGEST_WAIT_S = 5.0  # then a request is sent in any case: a limit that is too low stops no read
FREE_AFTER_S = 60.0  # a limit that held up no request for so long is dropped
_CUT, _CURVE = 0.7, 0.4  # RFC 9438: the factor of a cut, and the growth in requests/s per s^3
_GROWTH = 1.0  # requests a second more after a success, at most: a rate in full use grows by the factor e in a second
_THROTTLED = ("SLOW_DOWN", "SlowDown", "THROTTL", "TOO_MANY_REQUESTS", "Too Many Requests", "RESOURCE_EXHAUSTED",
              "SERVICE_UNAVAILABLE", "HTTP status 429", "HTTP status 503")  # fmt: skip

Result = TypeVar("Result")
_rates: dict[str, RequestRate] = {}  # by bucket; only of those that throttle
_sent: deque[float] = deque(maxlen=64)  # times of the last requests of this process
_after_waits: list[Callable[[], None]] = []


def root_of(path: str) -> str:
    """Return what fails as a whole: the bucket of a remote path with its scheme, the folder of a local one."""
    if not is_remote(path):
        return os.path.dirname(path)
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def throttles(error: OSError) -> bool:
    """Return True if the store answered that it gets too many requests."""
    return any(word in str(error) for word in _THROTTLED)


def paced(path: str, request: Callable[[], Result]) -> Result:
    """Return ``request()``; if its bucket throttles, send it when the bucket's rate allows.

    Args:
        path: remote.

    Raises:
        OSError: by the request.
    """
    rate = _rates.get(root_of(path)) if _rates else None
    sent = time.monotonic() if rate is None else rate.wait()
    _sent.append(sent)
    try:
        result = request()
    except OSError as error:
        if throttles(error):
            _rates.setdefault(root_of(path), rate or RequestRate(_rate_so_far())).throttled(sent)
        raise
    if rate is not None and not rate.succeeded():
        _rates.pop(root_of(path), None)
    return result


@contextlib.contextmanager
def after_each_wait(action: Callable[[], None]) -> Iterator[None]:
    """During the block, call ``action`` while requests of this process wait, at least before each is sent."""
    _after_waits.append(action)
    try:
        yield
    finally:
        _after_waits.remove(action)


def waited() -> None:
    """Call the actions of :func:`after_each_wait`."""
    for action in tuple(_after_waits):
        action()


def _rate_so_far() -> float:
    """Return the requests a second that this process sent last, to all buckets."""
    return max(FIRST_RATE, len(_sent) / max(1e-3, time.monotonic() - _sent[0]))


class RequestRate:
    """Token bucket that holds one token; thread-safe.

    Args:
        rate: requests a second until now, which are too many.
    """

    def __init__(self, rate: float) -> None:
        self._before_cut, self._rate = rate, _CUT * rate
        self._cut_at = self._held_at = time.monotonic()
        self._next = 0.0  # when the next token is there
        self._turn = threading.Lock()  # held by the thread that waits for the next token
        self._lock = threading.Lock()

    def wait(self) -> float:
        """Wait for a token, :data:`LONGEST_WAIT_S` at most; return the time, for :meth:`throttled`."""
        begin = time.monotonic()
        if self._turn.acquire(timeout=LONGEST_WAIT_S):
            try:
                now = time.monotonic()
                pause = min(self._next - now, begin + LONGEST_WAIT_S - now)
                self._next = max(self._next, now) + 1 / self._rate
                if pause > 0:
                    time.sleep(pause)
            finally:
                self._turn.release()
        now = time.monotonic()
        if now - begin > 1e-3:
            self._held_at = now
            waited()
        return now

    def throttled(self, sent: float) -> None:
        """Cut the rate after a throttling answer to a request of the time ``sent``.

        Answers to requests from before the last cut say nothing new.
        """
        with self._lock:
            if sent < self._cut_at:
                return
            self._before_cut, self._rate = self._rate, max(_CUT * self._rate, LOWEST_RATE)
            self._cut_at = self._held_at = time.monotonic()

    def succeeded(self) -> bool:
        """Raise the rate; return False if the limit is no longer needed."""
        with self._lock:
            now = time.monotonic()
            flat_s = (self._before_cut * (1 - _CUT) / _CURVE) ** (1 / 3)  # from the cut until the old rate
            curve = _CURVE * (now - self._cut_at - flat_s) ** 3 + self._before_cut
            self._rate = max(self._rate, min(curve, self._rate + _GROWTH))
            return now - self._held_at < FREE_AFTER_S
