"""Which rows of the index take part, and how often: predicates over the index, no image is opened."""

from __future__ import annotations

import numpy as np

from radioplat.data.hashing import hash_codes
from radioplat.data.shard_index import ShardIndex
from radioplat.spec.dataset import SplitConfig, WeightMode

REASONS = (
    "", "too_many_pixels", "min_short_side", "min_long_side", "min_area", "max_aspect_ratio", "duplicate",
)  # fmt: skip


def reject_reasons(index: ShardIndex, split: SplitConfig, max_pixels: int) -> np.ndarray:
    """Why each row is rejected: the first of :data:`REASONS` that holds.

    Thresholds are inclusive: a value equal to its threshold is kept. With ``split.dedup`` a row is a ``duplicate`` if
    an earlier row, of any source, that passes the other filters has its hash; missing hashes are computed.

    Returns:
        object ``[N]`` of str, ``""`` where the row is kept.
    """
    width, height = index.width.astype(np.int64), index.height.astype(np.int64)
    short, long, area = np.minimum(width, height), np.maximum(width, height), width * height
    limit = split.native_resolution_filter
    rejected = (
        area > max_pixels,
        short < (limit.min_short_side or 0),
        long < (limit.min_long_side or 0),
        area < (limit.min_area or 0),
        # Divided as the threshold was: 3 / 2 <= 1.5 must hold, whatever the factors.
        long / short > (np.inf if limit.max_aspect_ratio is None else limit.max_aspect_ratio),
    )
    code = np.zeros(len(index), np.int8)
    for number, mask in reversed(list(enumerate(rejected, start=1))):
        code[mask] = number
    if split.dedup:
        hashes = hash_codes(index, code == 0)
        kept = np.flatnonzero(code == 0)
        _, first = np.unique(hashes[kept], return_index=True)
        again = np.ones(len(kept), bool)
        again[first] = False
        code[kept[again]] = REASONS.index("duplicate")
    return np.array(REASONS, object)[code]


def sample_weights(index: ShardIndex, kept: np.ndarray, mode: WeightMode | None) -> np.ndarray:
    """How often each row is drawn, up to a factor: 1/f, 1/f^2, 1/log(1+f) or 1 (TAO's ``data_weight_mode``).

    f counts the kept rows, of all sources, with the row's hash; missing hashes are computed if the mode needs them.

    Args:
        index: of ``N`` rows.
        kept: bool ``[N]``.
        mode: None is ``uniform``.

    Returns:
        float64 ``[N]``, 0 where the row is not kept.
    """
    weight = np.zeros(len(index))
    if mode is None or mode == WeightMode.uniform:
        weight[kept] = 1.0
        return weight
    codes = hash_codes(index, kept)[kept]
    frequency = np.bincount(codes)[codes].astype(np.float64) if len(codes) else np.ones(0)
    if mode == WeightMode.inv_frequency:
        weight[kept] = 1 / frequency
    elif mode == WeightMode.inv_sq_frequency:
        weight[kept] = 1 / frequency**2
    else:
        weight[kept] = 1 / np.log1p(frequency)
    return weight
