"""Equal keys counted in arrays that may be longer than memory is large: a share of the keys at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from radioplat.data.index.scratch import scratch

ROWS_AT_ONCE = 1 << 23  # rows that are sorted together: some hundred megabytes
_STEP = 1 << 22


def frequencies(keys: np.ndarray, folder: Path) -> np.ndarray:
    """How many rows have each row's key: uint32 ``[N]``, 0 where the key (int64 ``[N]``) is 0.

    Args:
        folder: for an array that does not fit into memory.
    """
    found = scratch(len(keys), np.uint32, folder)
    for rows, mine in _shares(keys):
        _, place, count = np.unique(mine, return_inverse=True, return_counts=True)
        found[rows] = count[place]
    return found


def first_of_each(keys: np.ndarray, folder: Path) -> np.ndarray:
    """Whether a row is the first with its key: bool ``[N]``, False where the key is 0."""
    found = scratch(len(keys), bool, folder)
    for rows, mine in _shares(keys):
        _, first = np.unique(mine, return_index=True)
        found[rows[first]] = True
    return found


def _shares(keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows (ascending) and keys of the rows whose key is not 0, all rows of one key together."""
    shares = -(-len(keys) // ROWS_AT_ONCE)
    for share in range(shares):
        rows = []
        for start in range(0, len(keys), _STEP):
            part = keys[start : start + _STEP]
            mine = part != 0
            if shares > 1:  # keys are hashes: any of their bits spread them evenly
                mine &= part.view(np.uint64) % np.uint64(shares) == share
            rows.append(np.flatnonzero(mine) + start)
        found = np.concatenate(rows) if rows else np.empty(0, np.int64)
        yield found, keys[found]
