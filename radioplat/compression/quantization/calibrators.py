"""Clipping magnitudes ("amax") of quantizers from a histogram or a weight: percentile, least squared error, entropy.

Entropy is TensorRT's calibrator (Migacz 2017). A candidate clips the histogram: P is the clipped part with all values
beyond it added to its last bin. Q is P rounded to the format: each level's mass is spread evenly over those of its bins
that are not empty. The candidate with the least KL(P || Q) is the range.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from radioplat.compression.quantization.histogram import BINS, Magnitudes
from radioplat.models.quantized.fake_quantize import NumberFormat, round_to

MSE_CANDIDATES, MSE_WEIGHT_CANDIDATES = 100, 40
ENTROPY_STRIDE = 8  # bins from one candidate to the next


def percentile_amax(magnitudes: Magnitudes, percentile: float) -> float:
    """Return the upper edge of the bin with the ``percentile``-th magnitude; at most ``100 - percentile`` percent of
    the values are larger."""
    total = magnitudes.counts.cumsum(0)
    inside = int((total < total[-1] * percentile / 100 * (1 - 1e-12)).sum())
    return min(inside + 1, len(magnitudes.counts)) * magnitudes.width


def mse_amax(magnitudes: Magnitudes, format: NumberFormat) -> float:
    """Return the bin's upper edge with the least squared error when the centers of all bins are rounded."""
    centers, counts = magnitudes.centers(), magnitudes.counts
    edges = torch.linspace(BINS / MSE_CANDIDATES, BINS, MSE_CANDIDATES).round().double() * magnitudes.width
    errors = torch.stack([(counts * (centers - _rounded(centers, edge, format)).square()).sum() for edge in edges])
    return float(edges[errors.argmin()])


def mse_weight_amax(rows: torch.Tensor, format: NumberFormat) -> torch.Tensor:
    """Return the clipping magnitude of each of ``rows``, ``[n, m]``, with the least squared error, fp32 ``[n]``."""
    rows = rows.float()
    most = rows.abs().amax(1, keepdim=True)
    best, least = most.clone(), torch.full_like(most, float("inf"))
    for share in torch.linspace(1, 0.3, MSE_WEIGHT_CANDIDATES).tolist():
        amax = most * share
        error = (rows - _rounded(rows, amax.clamp(min=1e-30), format)).square().sum(1, keepdim=True)
        better = error < least
        best, least = torch.where(better, amax, best), torch.where(better, error, least)
    return best.flatten()


def entropy_amax(magnitudes: Magnitudes, format: NumberFormat) -> float:
    """Return the upper edge of the candidate with the least Kullback-Leibler divergence."""
    counts = magnitudes.counts.numpy().copy()
    counts[0] = counts[1]  # zeros, of which a ReLU makes many, are exact in every format and would outweigh the rest
    least = 1 << (format.bits - 1)  # with fewer bins than levels nothing would be rounded
    candidates = [*range(least, BINS, ENTROPY_STRIDE), BINS]
    divergences = [_divergence(counts, n, format) for n in candidates]
    if not np.isfinite(divergences).any():
        return magnitudes.amax
    return candidates[int(np.argmin(divergences))] * magnitudes.width


@functools.cache
def levels(bins: int, format: NumberFormat) -> np.ndarray:
    """Return the level, from 0, that each bin is rounded to if the last bin is the highest level; int64 ``[bins]``."""
    if format.row.is_float:
        centers = (torch.arange(bins) + 0.5) / bins * format.highest
        return torch.unique(round_to(centers, format), return_inverse=True)[1].numpy()
    return np.arange(bins) * (1 << (format.bits - 1)) // bins


def _divergence(counts: np.ndarray, bins: int, format: NumberFormat) -> float:
    """Return KL(P || Q) of the candidate with ``bins`` bins; infinite if they are empty."""
    inside = counts[:bins]
    p = inside.copy()
    p[-1] += counts[bins:].sum()
    if inside.sum() == 0 or (inside[-1] == 0 and p[-1] > 0):
        return float("inf")  # the second: clipped values in a bin that is empty otherwise, so Q is zero there
    level = levels(bins, format)
    filled = inside > 0
    mean = np.bincount(level, weights=inside) / np.maximum(np.bincount(level, weights=filled), 1)
    p, q = p[filled] / p.sum(), mean[level][filled] / inside.sum()
    return float((p * np.log(p / q)).sum())


def _rounded(x: torch.Tensor, amax: torch.Tensor, format: NumberFormat) -> torch.Tensor:
    scale = amax / format.highest
    return round_to(x / scale, format) * scale
