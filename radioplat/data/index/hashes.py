"""Hashes of images: from the sidecar, or else of the file's bytes, computed on demand."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.data.index.parquet_parts import write_table
from radioplat.data.index.scratch import scratch
from radioplat.data.index.shard_index import ShardIndex, missing_shard
from radioplat.data.scan.tables import hash_key
from radioplat.data.storage.files import HandlePool

HASH_SCHEMA = pa.schema([("content_hash", pa.large_string()), ("hash_key", pa.int64())])  # one row a row of the part


def hash_keys(index: ShardIndex, rows: np.ndarray) -> np.ndarray:
    """Return 64 bits of the hash of each row where ``rows`` (bool ``[N]``) is set: equal images have equal keys.

    Missing hashes are computed (sha256 of the bytes) and saved next to the index.

    Returns:
        int64 ``[N]``, 0 where ``rows`` is not set.

    Raises:
        DataError: a shard that must be read has changed or no longer exists.
    """
    keys = scratch(len(index), np.int64, index.directory)
    missing = False
    for start, table in index.rows.blocks(["hash_key"]):
        stop = start + len(table)
        keys[start:stop] = np.where(rows[start:stop], table["hash_key"].to_numpy(), 0)
        missing |= bool((rows[start:stop] & (keys[start:stop] == 0)).any())
    if missing:
        _hash_bytes(index, rows, keys)
    return keys


def _hash_bytes(index: ShardIndex, rows: np.ndarray, keys: np.ndarray) -> None:
    """Fill ``keys`` where they are 0 and ``rows`` is set, one part of the index at a time."""
    pool = HandlePool()
    places: dict[str, list[tuple[int, int, int]]] = {}
    first = 0
    for part, start, stop in index.rows.pieces(0, len(index)):
        places.setdefault(part, []).append((first, start, stop))
        first += stop - start
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for part, stretches in places.items():
            sample = np.concatenate([np.arange(f, f + stop - start) for f, start, stop in stretches])
            part_rows = np.concatenate([np.arange(start, stop) for _, start, stop in stretches])
            missing = rows[sample] & (keys[sample] == 0)
            if not missing.any():
                continue
            path = index.directory / f"{part}.hashes"
            known = _known(path)
            texts = known["content_hash"].to_pylist() if known else [None] * index.rows.part_length(part)
            fresh = [i for i in np.flatnonzero(missing) if texts[part_rows[i]] is None]
            digests = threads.map(lambda i, sample=sample: _digest(index, pool, int(sample[i])), fresh)
            for i, digest in zip(fresh, digests, strict=True):
                texts[part_rows[i]] = digest
            numbers = np.array([hash_key(text) for text in texts], np.int64)
            keys[sample[missing]] = numbers[part_rows[missing]]
            if fresh:
                write_table(pa.table([texts, numbers], schema=HASH_SCHEMA), path)


def _known(path: Path) -> pa.Table | None:
    try:
        return pq.read_table(path, schema=HASH_SCHEMA)
    except (OSError, pa.ArrowException):
        return None


def _digest(index: ShardIndex, pool: HandlePool, row: int) -> str:
    shard = int(index.shard[row])
    path = index.shard_paths[shard]
    try:
        handle = pool.get(path, lambda opened: index.check_shard(shard, opened.state))
        return hashlib.sha256(handle.read(int(index.offset[row]), int(index.length[row]))).hexdigest()
    except OSError as error:
        raise missing_shard(path, error) from None
