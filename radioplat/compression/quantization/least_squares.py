"""The range of least squared error: of a histogram, and of each channel of a weight."""

from __future__ import annotations

import torch

from radioplat.compression.quantization.histogram import BINS, Magnitudes
from radioplat.models.quantized.fake_quantize import NumberFormat, round_to

CANDIDATES, WEIGHT_CANDIDATES = 100, 40


def mse_amax(seen: Magnitudes, format: NumberFormat) -> float:
    """The candidate, a bin's upper edge, that loses least when each bin's middle is rounded."""
    centers = seen.centers()
    edges = torch.linspace(BINS / CANDIDATES, BINS, CANDIDATES).round().double() * seen.width
    errors = torch.stack([(seen.counts * (centers - _rounded(centers, a, format)).square()).sum() for a in edges])
    return float(edges[errors.argmin()])


def mse_weight_amax(weight: torch.Tensor, format: NumberFormat, per_channel: bool) -> torch.Tensor:
    """Fp32 ``[channels]`` or ``[1]``: of each channel the share of its largest magnitude that loses least."""
    rows = weight.detach().float().flatten(1) if per_channel else weight.detach().float().reshape(1, -1)
    most = rows.abs().amax(1, keepdim=True)
    best, least = most.clone(), torch.full_like(most, float("inf"))
    for share in torch.linspace(1, 0.3, WEIGHT_CANDIDATES).tolist():
        amax = most * share
        error = (rows - _rounded(rows, amax.clamp(min=1e-30), format)).square().sum(1, keepdim=True)
        better = error < least
        best, least = torch.where(better, amax, best), torch.where(better, error, least)
    return best.flatten()


def _rounded(x: torch.Tensor, amax: torch.Tensor, format: NumberFormat) -> torch.Tensor:
    scale = amax / format.highest
    return round_to(x / scale, format) * scale
