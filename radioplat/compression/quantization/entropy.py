"""The range of least Kullback-Leibler divergence, as TensorRT's entropy calibrator has it (Migacz 2017).

A candidate clips the histogram: what lies beyond goes into its last bin (P). Q is what the format's levels make of the
clipped part: in each level the mass is spread evenly over those of its bins that hold any. The candidate with the least
KL(P || Q) gives the range.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from radioplat.compression.quantization.histogram import BINS, Magnitudes
from radioplat.models.quantized.fake_quantize import NumberFormat, round_to

STRIDE = 8  # bins from one candidate to the next


def entropy_amax(seen: Magnitudes, format: NumberFormat) -> float:
    """The upper edge of the best candidate."""
    counts = seen.counts.numpy().copy()
    counts[0] = counts[1]  # zeros, of which a ReLU makes many, are exact in every format and would outweigh the rest
    least = 1 << (format.bits - 1)  # with fewer bins than levels nothing would be rounded
    candidates = [*range(least, BINS, STRIDE), BINS]
    divergences = [_divergence(counts, n, format) for n in candidates]
    if not np.isfinite(divergences).any():
        return seen.amax
    return candidates[int(np.argmin(divergences))] * seen.width


@functools.cache
def levels(bins: int, format: NumberFormat) -> np.ndarray:
    """Int64 ``[bins]``: the level, numbered from 0, that each bin falls into where the last bin is the highest."""
    if format.row.is_float:
        centers = (torch.arange(bins) + 0.5) / bins * format.highest
        return torch.unique(round_to(centers, format), return_inverse=True)[1].numpy()
    return np.arange(bins) * (1 << (format.bits - 1)) // bins


def _divergence(counts: np.ndarray, bins: int, format: NumberFormat) -> float:
    """KL(P || Q) of the candidate with ``bins`` bins; infinite where nothing is inside."""
    inside = counts[:bins]
    p = inside.copy()
    p[-1] += counts[bins:].sum()
    if inside.sum() == 0 or (inside[-1] == 0 and p[-1] > 0):
        return float("inf")  # the second: clipped values where nothing was, so that no level stands for them
    level = levels(bins, format)
    filled = np.bincount(level, weights=inside > 0)
    mean = np.bincount(level, weights=inside) / np.maximum(filled, 1)
    held = inside > 0
    p, q = p[held] / p.sum(), mean[level][held] / inside.sum()
    return float((p * np.log(p / q)).sum())
