"""Scan shards in batches: with threads of this process, in child processes, or in tasks of Ray Data."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from radioplat.data.scan.shard import scan_image, scan_tar
from radioplat.data.scan.tables import FAULT_SCHEMA
from radioplat.spec.resolved.paths import is_remote

IMAGES_PER_BATCH = 512  # image files scanned together; a tar is a batch by itself
LITTLE_BYTES = 1 << 30  # of shards: fewer are scanned before child processes have started
REMOTE_THREADS = 32  # for an object store, where a scan mostly waits
_DIGESTED = ("offset", "length", "width", "height", "key", "hash")


@dataclass(frozen=True)
class ScanBatch:
    """Files of one source that are scanned together.

    Attributes:
        first: shard number of the first file in the index; the others follow.
        names: paths below ``root``.
        size: of all files, bytes.
        image_extension: of the images in tars; see :func:`scan_tar`.
    """

    first: int
    kind: Literal["tar", "image"]
    root: str
    names: tuple[str, ...]
    size: int = 0
    image_extension: str | None = None


@dataclass(frozen=True)
class ScanResult:
    """Rows and faults of the files of a :class:`ScanBatch`.

    Attributes:
        rows: of :data:`SCAN_SCHEMA`, file after file.
        counts: rows of each file.
        digests: sha256 (hex) of each file's rows.
        faults: of :data:`FAULT_SCHEMA`.
    """

    batch: ScanBatch
    rows: pa.Table
    counts: list[int]
    digests: list[str]
    faults: pa.Table


Scanner = Callable[[list[ScanBatch]], Iterator[ScanResult]]
"""Scans batches; yields results as they become ready, in any order."""


def scan_batch(batch: ScanBatch) -> ScanResult:
    """Scan the files of ``batch``; every problem with them becomes a fault, never an exception."""
    tables, faults = [], []
    for name in batch.names:
        path = f"{batch.root}/{name}"
        scan = scan_tar(path, batch.image_extension) if batch.kind == "tar" else scan_image(path, name)
        tables.append(scan.rows)
        faults += [vars(fault) for fault in scan.faults]
    return ScanResult(
        batch,
        pa.concat_tables(tables),
        [len(table) for table in tables],
        [_digest(table) for table in tables],
        pa.Table.from_pylist(faults, schema=FAULT_SCHEMA),
    )


def scan_here(batches: list[ScanBatch], workers: int | None = None) -> Iterator[ScanResult]:
    """Scan with threads of this process; sufficient for slow storage or few files."""
    remote = any(is_remote(batch.root) for batch in batches)
    with ThreadPoolExecutor(workers or (REMOTE_THREADS if remote else min(8, os.cpu_count() or 1))) as pool:
        yield from _spread(pool, batches, 64)


def scan_in_processes(batches: list[ScanBatch], workers: int | None = None) -> Iterator[ScanResult]:
    """Scan with one process for each core: header parsing is Python code, which the GIL serializes in threads."""
    count = min(workers or os.cpu_count() or 1, len(batches))
    if count < 2 or is_little(batches) or any(is_remote(batch.root) for batch in batches):
        yield from scan_here(batches, workers)
        return
    with scan_pool(count) as scan:
        yield from scan(batches)


@contextmanager
def scan_pool(workers: int) -> Iterator[Scanner]:
    """Run child processes that scan until the ``with`` block ends."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield lambda batches: _spread(pool, batches, 4 * workers)


def is_little(batches: list[ScanBatch]) -> bool:
    """Return True if starting child processes would take longer than the scan."""
    return sum(batch.size for batch in batches) < LITTLE_BYTES


def _spread(pool: Executor, batches: Iterable[ScanBatch], ahead: int) -> Iterator[ScanResult]:
    """Yield results in order; at most ``ahead`` batches are in flight."""
    waiting: deque = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(scan_batch, batch))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _digest(rows: pa.Table) -> str:
    digest = hashlib.sha256()
    for name in _DIGESTED:
        digest.update(f"|{name}:{rows.num_rows}|".encode())
        for part in canonical(rows[name]):
            digest.update(part)
    return digest.hexdigest()


def canonical(column: pa.ChunkedArray) -> list[memoryview | bytes]:
    """Return bytes that depend on the values only, not on Arrow's chunks and padding."""
    if pa.types.is_integer(column.type):
        values = column.to_numpy()
        return [np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data.cast("B")]
    lengths = pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), -1).to_numpy()
    parts: list[memoryview | bytes] = [np.ascontiguousarray(lengths, "<i8").data.cast("B")]
    for chunk in column.chunks:
        chunk = pa.concat_arrays([chunk.fill_null("")])  # a fresh array: offset 0, no bytes behind nulls
        data = chunk.buffers()[2]
        if data is not None and len(chunk):
            bounds = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            parts.append(memoryview(data)[int(bounds[0]) : int(bounds[-1])])
    return parts
