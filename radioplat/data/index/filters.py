"""Filter and weigh the rows of an index by its columns; no image is opened."""

from __future__ import annotations

import numpy as np

from radioplat.data.index.frequency import first_of_each, frequencies
from radioplat.data.index.hashes import hash_keys
from radioplat.data.index.scratch import scratch
from radioplat.data.index.shard_index import ShardIndex
from radioplat.spec.schema.dataset import SplitConfig, WeightMode

# An index of a run stores positions in this list: append only.
REASONS = (
    "", "too_many_pixels", "min_short_side", "min_long_side", "min_area", "max_aspect_ratio", "duplicate", "no_boxes",
)  # fmt: skip


def reject_codes(index: ShardIndex, split: SplitConfig, max_pixels: int) -> np.ndarray:
    """Return the first reason for which each row is rejected.

    Thresholds are inclusive: a value equal to its threshold is kept. With ``split.dedup`` a row is a ``duplicate`` if
    an earlier row, of any source, that passes the other filters has its hash; missing hashes are computed.

    Returns:
        uint8 ``[N]``, indices into :data:`REASONS`; 0 for a row that is kept.
    """
    code = scratch(len(index), np.uint8, index.directory)
    for start, table in index.rows.blocks(["width", "height"]):
        width, height = (table[name].to_numpy().astype(np.int64) for name in ("width", "height"))
        code[start : start + len(table)] = _by_size(width, height, split, max_pixels)
    if split.dedup:
        kept = code == 0
        code[kept & ~first_of_each(hash_keys(index, kept), index.directory)] = REASONS.index("duplicate")
    return code


def draw_frequencies(index: ShardIndex, kept: np.ndarray, mode: WeightMode | None) -> np.ndarray:
    """Count, for each kept row, the kept rows of all sources with the same hash; :func:`weight_of` needs this f.

    Missing hashes are computed if the mode needs them; in mode ``uniform`` f is 1.

    Args:
        index: of ``N`` rows.
        kept: bool ``[N]``.
        mode: None is ``uniform``.

    Returns:
        uint32 ``[N]``, 0 where the row is not kept.
    """
    if mode is None or mode == WeightMode.uniform:
        ones = scratch(len(index), np.uint32, index.directory)
        ones[:] = kept
        return ones
    return frequencies(hash_keys(index, kept), index.directory)


def weight_of(frequency: np.ndarray, mode: WeightMode | None) -> np.ndarray:
    """Return the unnormalized sampling weight of rows: 1/f, 1/f^2, 1/log(1+f) or 1 (TAO's ``data_weight_mode``).

    Args:
        frequency: ``[n]``, 0 for a row that is not drawn.
        mode: None is ``uniform``.

    Returns:
        float64 ``[n]``, 0 where the frequency is 0.
    """
    drawn = frequency > 0
    f = np.where(drawn, frequency, 1).astype(np.float64)
    if mode is None or mode == WeightMode.uniform:
        weight = np.ones_like(f)
    elif mode == WeightMode.inv_frequency:
        weight = 1 / f
    elif mode == WeightMode.inv_sq_frequency:
        weight = 1 / f**2
    else:
        # Logarithms differ in the last bit between processors; the sample order must not.
        weight = (1 / np.log1p(f)).astype(np.float32).astype(np.float64)
    return np.where(drawn, weight, 0.0)


def _by_size(width: np.ndarray, height: np.ndarray, split: SplitConfig, max_pixels: int) -> np.ndarray:
    short, long, area = np.minimum(width, height), np.maximum(width, height), width * height
    limit = split.native_resolution_filter
    rejected = {
        "too_many_pixels": area > max_pixels,
        "min_short_side": short < (limit.min_short_side or 0),
        "min_long_side": long < (limit.min_long_side or 0),
        "min_area": area < (limit.min_area or 0),
        # A division, as users compute the threshold: 3 / 2 <= 1.5 must be true.
        "max_aspect_ratio": long / short > (np.inf if limit.max_aspect_ratio is None else limit.max_aspect_ratio),
    }
    code = np.zeros(len(width), np.uint8)
    for name, mask in reversed(rejected.items()):  # the first reason is written last, and stays
        code[mask] = REASONS.index(name)
    return code
