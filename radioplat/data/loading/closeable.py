"""Iterators that one thread reads and another may close, and threads that are waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")

PATIENCE_S = 30.0


class CloseableIterator(Iterator[Item]):
    """A generator that any thread may close, also while another waits inside it; Python's own then raises.

    Args:
        wake: makes what the generator may be waiting for come to an end; it is called in the thread that closes.
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

    def close(self) -> None:
        """No more items. What the generator holds is released before this returns, or by the thread that is inside it
        when it leaves; until then every further call wakes it again."""
        self._closed.set()
        if self._in_use.acquire(blocking=False):
            try:
                self._generator.close()
            finally:
                self._in_use.release()
        else:
            self._wake()


def end_thread(thread: threading.Thread, wake: Callable[[], None], patience: float = PATIENCE_S) -> bool:
    """Wait until ``thread`` has ended, ``patience`` seconds at most; returns whether it has.

    Args:
        wake: called until it has: the thread may not yet be waiting for what the first call ends.
    """
    deadline = time.monotonic() + patience
    while thread.is_alive() and time.monotonic() < deadline:
        wake()
        thread.join(0.1)
    return not thread.is_alive()
