"""Batches read ahead by threads of this process: the stream of local mode, and of evaluation."""

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
    patience: float | None = None,
    careful: Callable[[Item], Batch] | None = None,
) -> Iterator[Batch]:
    """Yield ``read(item)`` of each item in order, ``prefetch`` of them read ahead.

    Decoding and resizing release the interpreter lock, so threads use every core that they are given. They are daemons:
    one that hangs, or waits for storage, does not keep the process from ending.

    Args:
        patience: seconds that a read may take, without those that it waits for storage that fails; None for ever.
        careful: what reads from then on, in new threads, once a read took longer; it must not hang.
    """
    ahead: deque[tuple[Item, AsyncResult[Batch]]] = deque()
    pool = ThreadPool(max(1, threads))

    def take() -> Batch:
        nonlocal pool, read, patience, ahead
        waiting = True
        while waiting:
            try:
                return ahead[0][1].get(patience)
            except ReadTimeout:
                if careful is None:
                    raise
                waiting = is_waiting()
        assert careful is not None
        pool.terminate()  # its threads may hang for good
        pool, read, patience = ThreadPool(max(1, threads)), careful, None
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
    """Yield the batches of ``micro_batches`` in order, padding included."""

    def read(micro_batch: int, by: MicroBatchReader = reader) -> Batch:
        return padding_batch(by.views, by.batch_size) if micro_batch == PADDING else by.read(micro_batch)

    return load_batches(
        read,
        micro_batches,
        threads=threads,
        prefetch=prefetch,
        patience=reader.read_timeout_s,
        careful=partial(read, by=reader.careful()),
    )
