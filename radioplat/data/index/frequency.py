"""Count equal keys in arrays larger than memory, by partitions of the keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from radioplat.data.index.scratch import scratch

ROWS_AT_ONCE = 1 << 23  # rows that are sorted together: some hundred megabytes
_STEP = 1 << 22


def frequencies(keys: np.ndarray, folder: Path) -> np.ndarray:
    """Count, for each row, the rows with its key: uint32 ``[N]``, 0 where the key (int64 ``[N]``) is 0.

    Args:
        folder: for temporary files, if the result does not fit into memory.
    """
    counts = scratch(len(keys), np.uint32, folder)
    for rows, chosen in _partitions(keys):
        _, place, count = np.unique(chosen, return_inverse=True, return_counts=True)
        counts[rows] = count[place]
    return counts


def first_of_each(keys: np.ndarray, folder: Path) -> np.ndarray:
    """Mark the first row of each key: bool ``[N]``, False where the key is 0."""
    is_first = scratch(len(keys), bool, folder)
    for rows, chosen in _partitions(keys):
        _, first = np.unique(chosen, return_index=True)
        is_first[rows[first]] = True
    return is_first


def _partitions(keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows (ascending) and keys that are not 0; all rows of one key are in the same partition."""
    count = -(-len(keys) // ROWS_AT_ONCE)
    for number in range(count):
        rows = [np.empty(0, np.int64)]
        for start in range(0, len(keys), _STEP):
            part = keys[start : start + _STEP]
            chosen = part != 0
            if count > 1:  # keys are hashes: any of their bits distribute them evenly
                chosen &= part.view(np.uint64) % np.uint64(count) == number
            rows.append(np.flatnonzero(chosen) + start)
        joined = np.concatenate(rows)
        yield joined, keys[joined]
