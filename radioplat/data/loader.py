"""Batches read ahead by threads of this process: the stream of local mode, and of evaluation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from radioplat.data.batch import Batch
from radioplat.data.grains import PADDING
from radioplat.data.padding import padding_batch
from radioplat.data.reader import GrainReader

Item = TypeVar("Item")


def load_batches(
    read: Callable[[Item], Batch], items: Iterable[Item], *, threads: int, prefetch: int
) -> Iterator[Batch]:
    """Yield ``read(item)`` of each item in order, ``prefetch`` of them read ahead.

    Decoding and resizing release the interpreter lock, so threads use every core that they are given.
    """
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="decode") as pool:
        ahead: deque = deque()
        try:
            for item in items:
                ahead.append(pool.submit(read, item))
                if len(ahead) > max(prefetch, threads):
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def load_grains(reader: GrainReader, grains: Iterable[int], *, threads: int, prefetch: int) -> Iterator[Batch]:
    """Yield the batches of ``grains`` in order, padding included."""

    def read(grain: int) -> Batch:
        return padding_batch(reader.views, reader.batch_size) if grain == PADDING else reader.read(grain)

    return load_batches(read, grains, threads=threads, prefetch=prefetch)
