"""Hashes of images: the sidecar's where there is one, else of the bytes, computed only when somebody asks."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from radioplat.data.files import HandlePool
from radioplat.data.shard_index import ShardIndex, gone


def hash_codes(index: ShardIndex, rows: np.ndarray) -> np.ndarray:
    """Number the hashes of the rows where ``rows`` (bool ``[N]``) is set: equal images get equal numbers.

    What has no hash yet is hashed (sha256) and kept as a column of the index, in its folder too, if it has one.

    Returns:
        int64 ``[N]``, -1 where ``rows`` is not set.

    Raises:
        DataError: a shard that must be read changed or is gone.
    """
    _fill(index, rows)
    hashes = pc.coalesce(index.samples["hash"], index.samples["content_hash"]).combine_chunks()
    codes = np.full(len(index), -1, np.int64)
    kept = hashes.filter(pa.array(rows))
    codes[rows] = kept.dictionary_encode().indices.to_numpy() if len(kept) else 0
    return codes


def _fill(index: ShardIndex, rows: np.ndarray) -> None:
    known = index.samples["content_hash"]
    have = pc.or_(pc.is_valid(index.samples["hash"]), pc.is_valid(known)).to_numpy()
    missing = np.flatnonzero(rows & ~have)
    if not len(missing):
        return
    pool = HandlePool()
    digests = [_digest(index, pool, int(row)) for row in missing]
    mask = np.zeros(len(index), bool)
    mask[missing] = True
    filled = pc.replace_with_mask(known.combine_chunks(), pa.array(mask), pa.array(digests, pa.large_string()))
    place = index.samples.schema.get_field_index("content_hash")
    index.samples = index.samples.set_column(place, "content_hash", filled)
    if index.directory is not None:
        index.save(index.directory)


def _digest(index: ShardIndex, pool: HandlePool, row: int) -> str:
    shard = int(index.shard[row])
    path = index.shard_paths[shard]
    try:
        handle = pool.get(path, lambda opened: index.check_shard(shard, opened.state))
        return hashlib.sha256(handle.read(int(index.offset[row]), int(index.length[row]))).hexdigest()
    except OSError as error:
        raise gone(path, error) from None
