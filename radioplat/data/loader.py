"""Batches read ahead by threads of this process: the stream of local mode, and of evaluation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from radioplat.data.batch import Batch
from radioplat.data.grains import PADDING
from radioplat.data.padding import padding_batch
from radioplat.data.reader import GrainReader

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

    Decoding and resizing release the interpreter lock, so threads use every core that they are given.

    Args:
        patience: seconds that a read may take; None for ever.
        careful: what reads from then on, in new threads, once a read took longer; it must not hang.
    """
    ahead: deque[tuple[Item, Future[Batch]]] = deque()
    pool = _pool(threads)

    def take() -> Batch:
        nonlocal pool, read, patience, ahead
        try:
            return ahead[0][1].result(patience)
        except TimeoutError:
            if careful is None or ahead[0][1].done():
                raise
        pool.shutdown(wait=False, cancel_futures=True)  # its threads may hang for good
        pool, read, patience = _pool(threads), careful, None
        ahead = deque((item, pool.submit(read, item)) for item, _ in ahead)
        return ahead[0][1].result()

    try:
        for item in items:
            ahead.append((item, pool.submit(read, item)))
            if len(ahead) > max(prefetch, threads):
                yield take()
                ahead.popleft()
        while ahead:
            yield take()
            ahead.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, threads), thread_name_prefix="decode")


def load_grains(reader: GrainReader, grains: Iterable[int], *, threads: int, prefetch: int) -> Iterator[Batch]:
    """Yield the batches of ``grains`` in order, padding included."""

    def read(grain: int, by: GrainReader = reader) -> Batch:
        return padding_batch(by.views, by.batch_size) if grain == PADDING else by.read(grain)

    return load_batches(
        read,
        grains,
        threads=threads,
        prefetch=prefetch,
        patience=reader.read_timeout_s,
        careful=partial(read, by=reader.careful()),
    )
