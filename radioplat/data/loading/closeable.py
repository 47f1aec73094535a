"""Iterators that another thread may close, and waiting for threads to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")

END_TIMEOUT_S = 30.0


class CloseableIterator(Iterator[Item]):
    """A generator that any thread may close, even while another waits in it (a plain generator would raise).

    Args:
        wake: ends whatever the generator may be waiting for; called in the closing thread.
    """

    def __init__(self, generator: Generator[Item, None, None], wake: Callable[[], None]) -> None:
        self._generator, self._wake = generator, wake
        self._closed = threading.Event()
        self._in_use = threading.Lock()

    def __next__(self) -> Item:
        with self._in_use:
            if not self._closed.is_set():
                item = next(self._generator)
                if not self._closed.is_set():
                    return item
            self._generator.close()
            raise StopIteration

    @property
    def closed(self) -> bool:
        """Return True once :meth:`close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Stop iteration and close the generator, now or, if a thread is inside it, when that thread leaves it.

        Each further call wakes that thread again.
        """
        self._closed.set()
        if self._in_use.acquire(blocking=False):
            try:
                self._generator.close()
            finally:
                self._in_use.release()
        else:
            self._wake()


def end_thread(thread: threading.Thread, wake: Callable[[], None], timeout_s: float = END_TIMEOUT_S) -> bool:
    """Wait at most ``timeout_s`` seconds for ``thread`` to end; return True if it has.

    Args:
        wake: ends what the thread waits for; called repeatedly, since the thread may begin to wait later.
    """
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and time.monotonic() < deadline:
        wake()
        thread.join(0.1)
    return not thread.is_alive()
