"""Reductions: from one value a position to one value a sample, and to one value a micro-batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def zero_unweighted(x: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Replace ``x`` by zeros where it has no weight: there it may be NaN, and 0 * NaN is NaN in a gradient.

    Args:
        x: ``[B, ...]``, or ``[B, h, w, ...]`` with ``valid``.
        weight: ``[B]``, 0 for an unreadable sample.
        valid: ``[B, h, w]`` in [0, 1], or None.
    """
    counts = (weight > 0).view(-1, *[1] * (x.ndim - 1))
    if valid is not None:
        counts = counts & (valid > 0).view(*valid.shape, *[1] * (x.ndim - valid.ndim))
    return torch.where(counts, x, 0.0)


def sample_means(
    values: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute each sample's mean over its valid positions, ``[B]``, and its weight, ``[B]``.

    Values without weight may be NaN: the mean is 0, without gradient.

    Args:
        values: ``[B]`` or ``[B, h, w]``.
        weight: ``[B]``, 0 for an unreadable sample.
        valid: ``[B, h, w]`` in [0, 1], or None; a sample without a valid position gets weight 0.
    """
    # where, not a product: 0 * NaN is NaN.
    if valid is not None:
        count = valid.flatten(1).sum(1)
        weight = torch.where(count > 0, weight, 0.0)
    if valid is not None and values.ndim > 1:
        values = (torch.where(valid > 0, values, 0.0) * valid).flatten(1).sum(1) / count.clamp(min=1e-6)
    elif values.ndim > 1:
        values = values.flatten(1).mean(1)
    return torch.where(weight > 0, values, 0.0), weight


def weighted_mean(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Average ``values`` ``[B]`` by ``weight`` ``[B]`` to a scalar; 0 if all weights are 0."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-6)


def masked_mean(values: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Average over samples the mean over valid positions; 0 if all weights are 0.

    Values without weight may be NaN: they change neither the result nor any gradient. Arguments: :func:`sample_means`.
    """
    return weighted_mean(*sample_means(values, weight, valid))


def to_grid(spatial: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Resize a map ``[B, H, W, D]`` to ``[B, h, w, D]``: averaged where it shrinks, bilinear where it grows.

    Both maps show the same crop, so positions correspond by scale alone.
    """
    if tuple(spatial.shape[1:3]) == grid:
        return spatial
    nchw = spatial.permute(0, 3, 1, 2)
    if spatial.shape[1] >= grid[0] and spatial.shape[2] >= grid[1]:
        return F.adaptive_avg_pool2d(nchw, grid).permute(0, 2, 3, 1)
    return F.interpolate(nchw, size=grid, mode="bilinear", align_corners=False).permute(0, 2, 3, 1)


def on_coarser_grid(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Resize two maps ``[B, H, W, D]`` to the smaller height and width of the two; summaries ``[B, D]`` stay."""
    if a.ndim < 4:
        return a, b
    grid = (min(a.shape[1], b.shape[1]), min(a.shape[2], b.shape[2]))
    return to_grid(a, grid), to_grid(b, grid)
