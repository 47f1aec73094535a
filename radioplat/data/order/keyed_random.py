"""Random numbers that depend on a key only, so no generator state is carried or saved in a checkpoint."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

MOST = 64  # maximum number of draws per key and purpose


def uniforms(seed: int, purpose: str, keys: np.ndarray, count: int) -> np.ndarray:
    """Return float64 ``[N, count]`` in [0, 1); row i depends only on ``seed``, ``purpose`` and ``keys[i]``.

    It is the raw output of Philox4x64, which numpy guarantees never to change, at counter 16 x key. Consecutive
    keys share one generator.

    Args:
        keys: int64 ``[N]``, not negative.
        count: at most :data:`MOST`.
    """
    if count > MOST:
        raise ValueError(f"at most {MOST} draws a key, not {count}")
    out = np.empty((len(keys), count))
    breaks = np.flatnonzero(np.diff(keys) != 1) + 1
    for first, last in zip([0, *breaks], [*breaks, len(keys)], strict=True):
        if first == last:
            continue
        counter = int(keys[first]) * (MOST // 4)
        bits = np.random.Philox(key=_key(seed, purpose), counter=counter).random_raw((last - first) * MOST)
        out[first:last] = (bits.reshape(-1, MOST)[:, :count] >> np.uint64(11)) * 2.0**-53
    return out


@lru_cache(maxsize=256)
def _key(seed: int, purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest(), "little")
