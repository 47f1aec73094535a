"""The range of least Kullback-Leibler divergence, as TensorRT's entropy calibrator has it (Migacz 2017).

A candidate clips the histogram: what lies beyond goes into its last bin (P). Q is what the format's levels make of the
clipped part: in each level the mass is spread evenly over those of its bins that hold any. The candidate with the least
KL(P || Q) gives the range.
"""

from __future__ import annotations

import torch

from radioplat.compress.magnitudes import BINS, Magnitudes
from radioplat.models.fake_quantize import NumberFormat, round_to

STRIDE = 8  # bins from one candidate to the next


def entropy_amax(seen: Magnitudes, format: NumberFormat) -> float:
    """The upper edge of the best candidate."""
    counts = seen.counts.clone()
    counts[0] = counts[1]  # zeros, of which a ReLU makes many, are exact in every format and would outweigh the rest
    least = 1 << (format.bits - 1)  # with fewer bins than levels nothing would be rounded
    candidates = [*range(least, BINS, STRIDE), BINS]
    divergences = torch.stack([_divergence(counts, n, format) for n in candidates])
    if not divergences.isfinite().any():
        return seen.amax
    return candidates[int(divergences.argmin())] * seen.width


def levels(bins: int, format: NumberFormat) -> torch.Tensor:
    """Int64 ``[bins]``: the level, numbered from 0, that each bin falls into where the last bin is the highest."""
    if format is NumberFormat.fp8:
        centers = (torch.arange(bins) + 0.5) / bins * format.highest
        return torch.unique(round_to(centers, format), return_inverse=True)[1]
    return torch.arange(bins) * (1 << (format.bits - 1)) // bins


def _divergence(counts: torch.Tensor, bins: int, format: NumberFormat) -> torch.Tensor:
    """KL(P || Q) of the candidate with ``bins`` bins; infinite where nothing is inside."""
    inside = counts[:bins]
    p = inside.clone()
    p[-1] += counts[bins:].sum()
    if inside.sum() == 0:
        return torch.tensor(float("inf"), dtype=torch.float64)
    level = levels(bins, format)
    count = int(level[-1]) + 1
    mass = torch.zeros(count, dtype=torch.float64).index_add_(0, level, inside)
    filled = torch.zeros(count, dtype=torch.float64).index_add_(0, level, (inside > 0).double())
    q = torch.where(inside > 0, (mass / filled.clamp(min=1))[level], torch.zeros_like(inside))
    p, q = p / p.sum(), q / q.sum()
    lost = (p > 0) & (q == 0)  # clipped values where nothing was: no level stands for them
    kept = (p > 0) & (q > 0)
    if lost.any():
        return torch.tensor(float("inf"), dtype=torch.float64)
    return (p[kept] * (p[kept] / q[kept]).log()).sum()
