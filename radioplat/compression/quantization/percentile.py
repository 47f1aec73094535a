"""A range that leaves out a share of the largest values."""

from __future__ import annotations

from radioplat.compression.quantization.histogram import Magnitudes


def percentile_amax(seen: Magnitudes, percentile: float) -> float:
    """The upper edge of the bin that holds the ``percentile``-th magnitude; above it lie at most ``100 - percentile``
    percent of the values."""
    total = seen.counts.cumsum(0)
    inside = int((total < total[-1] * percentile / 100 * (1 - 1e-12)).sum())
    return min(inside + 1, len(seen.counts)) * seen.width
