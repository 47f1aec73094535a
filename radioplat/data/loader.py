"""Grains read ahead by threads of this process: the stream of local mode."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from radioplat.data.batch import Batch
from radioplat.data.grains import PADDING
from radioplat.data.padding import padding_batch
from radioplat.data.reader import GrainReader


def load_grains(reader: GrainReader, grains: Iterable[int], *, threads: int, prefetch: int) -> Iterator[Batch]:
    """Yield the batches of ``grains`` in order, ``prefetch`` of them read ahead.

    Decoding and resizing release the interpreter lock, so threads use every core that they are given.
    """
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="decode") as pool:
        ahead: deque = deque()
        try:
            for grain in grains:
                ahead.append(None if grain == PADDING else pool.submit(reader.read, grain))
                if len(ahead) > max(prefetch, threads):
                    yield _take(ahead, reader)
            while ahead:
                yield _take(ahead, reader)
        finally:
            for future in ahead:
                if future is not None:
                    future.cancel()


def _take(ahead: deque, reader: GrainReader) -> Batch:
    future = ahead.popleft()
    return padding_batch(reader.views, reader.batch_size) if future is None else future.result()
