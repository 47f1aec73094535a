"""Read batches ahead with threads of this process, for local mode and evaluation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing import TimeoutError as ReadTimeout
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import TypeVar

from radioplat.data.batch import Batch
from radioplat.data.loading.padding import padding_batch
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.order.micro_batch_schedule import PADDING
from radioplat.data.storage.outage import is_waiting

Item = TypeVar("Item")


def load_batches(
    read: Callable[[Item], Batch],
    items: Iterable[Item],
    *,
    threads: int,
    prefetch: int,
    timeout_s: float | None = None,
    careful: Callable[[Item], Batch] | None = None,
) -> Iterator[Batch]:
    """Yield ``read(item)`` of each item in order, with ``prefetch`` items read ahead.

    Decoding and resizing release the interpreter lock, so threads use all cores. They are daemons: a thread that hangs
    or waits for storage does not keep the process from exiting.

    Args:
        timeout_s: time limit of a read, not counting waits for failing storage; None: no limit.
        careful: replaces ``read``, in new threads, after a read exceeded the limit; it must not hang.
    """
    ahead: deque[tuple[Item, AsyncResult[Batch]]] = deque()
    pool = ThreadPool(max(1, threads))

    def take() -> Batch:
        nonlocal pool, read, timeout_s, ahead
        waiting = True
        while waiting:
            try:
                return ahead[0][1].get(timeout_s)
            except ReadTimeout:
                if careful is None:
                    raise
                waiting = is_waiting()
        assert careful is not None
        pool.terminate()  # its threads may hang forever
        pool, read, timeout_s = ThreadPool(max(1, threads)), careful, None
        ahead = deque((item, pool.apply_async(read, (item,))) for item, _ in ahead)
        return ahead[0][1].get()

    try:
        for item in items:
            ahead.append((item, pool.apply_async(read, (item,))))
            if len(ahead) > max(prefetch, threads):
                yield take()
                ahead.popleft()
        while ahead:
            yield take()
            ahead.popleft()
    finally:
        pool.terminate()


def load_micro_batches(
    reader: MicroBatchReader, micro_batches: Iterable[int], *, threads: int, prefetch: int
) -> Iterator[Batch]:
    """Yield the batches of ``micro_batches``, including padding, in order."""

    def read(micro_batch: int, by: MicroBatchReader = reader) -> Batch:
        return padding_batch(by.views, by.batch_size) if micro_batch == PADDING else by.read(micro_batch)

    return load_batches(
        read,
        micro_batches,
        threads=threads,
        prefetch=prefetch,
        timeout_s=reader.read_timeout_s,
        careful=partial(read, by=reader.careful()),
    )
