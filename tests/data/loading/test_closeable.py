"""Iterators that another thread closes, and threads that are waited for."""

from __future__ import annotations

import threading
import time

from radioplat.data.loading.closeable import CloseableIterator, end_thread
from radioplat.training.feed.feeder import Feeder


class Source:
    """Numbers that come as they are let through; ``ended`` is set when the generator is left."""

    def __init__(self, ready: int) -> None:
        self._ready, self.waits, self.ended = threading.Semaphore(ready), threading.Event(), threading.Event()
        self.items = CloseableIterator(self._count(), wake=self._ready.release)

    def _count(self):
        try:
            number = 0
            while True:
                if not self._ready.acquire(blocking=False):
                    self.waits.set()
                    self._ready.acquire()
                yield number
                number += 1
        finally:
            self.ended.set()


def test_closed_by_its_reader_it_gives_no_more():
    source = Source(ready=5)
    assert [next(source.items), next(source.items)] == [0, 1]
    source.items.close()
    source.items.close()
    assert source.ended.is_set() and list(source.items) == []


def test_closed_by_another_thread_its_reader_is_woken_and_leaves():
    source, found = Source(ready=2), []
    reader = threading.Thread(target=lambda: found.extend(source.items), daemon=True)
    reader.start()
    assert source.waits.wait(10)
    assert end_thread(reader, wake=source.items.close, timeout_s=10)
    assert found == [0, 1] and source.ended.is_set()


def test_a_thread_that_cannot_be_woken_is_left_after_the_patience():
    forever = threading.Event()
    thread = threading.Thread(target=forever.wait, daemon=True)
    thread.start()
    begin = time.monotonic()
    assert not end_thread(thread, wake=lambda: None, timeout_s=0.5)
    assert 0.4 < time.monotonic() - begin < 5
    forever.set()
    assert end_thread(thread, wake=lambda: None)


def test_a_feeder_that_is_closed_releases_what_it_reads_from():
    left = threading.Event()

    class Padding:
        micro_batch = -1

    def batches():
        try:
            while True:
                yield Padding()
        finally:
            left.set()

    kept = batches()  # whoever else holds the generator does not keep it open
    feeder = Feeder(kept, {}, [], depth=2)
    next(iter(feeder))
    feeder.close()
    assert left.is_set() and list(kept) == []
