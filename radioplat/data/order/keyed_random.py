"""Random numbers that follow from a key alone: nothing is carried from sample to sample, or in a checkpoint."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

MOST = 64  # draws a position may take of one purpose


def uniforms(seed: int, purpose: str, position: np.ndarray, count: int) -> np.ndarray:
    """float64 ``[N, count]`` in [0, 1): row i depends on ``seed``, ``purpose`` and ``position[i]``, on nothing else.

    The raw output of Philox4x64, which numpy promises never to change, at counter 16 x position. A stretch of
    consecutive positions costs one generator, not one each.

    Args:
        position: int64 ``[N]``, not negative.
        count: at most :data:`MOST`.
    """
    if count > MOST:
        raise ValueError(f"at most {MOST} draws a position, not {count}")
    out = np.empty((len(position), count))
    breaks = np.flatnonzero(np.diff(position) != 1) + 1
    for first, last in zip([0, *breaks], [*breaks, len(position)], strict=True):
        if first == last:
            continue
        counter = int(position[first]) * (MOST // 4)
        bits = np.random.Philox(key=_key(seed, purpose), counter=counter).random_raw((last - first) * MOST)
        out[first:last] = (bits.reshape(-1, MOST)[:, :count] >> np.uint64(11)) * 2.0**-53
    return out


@lru_cache(maxsize=256)
def _key(seed: int, purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest(), "little")
