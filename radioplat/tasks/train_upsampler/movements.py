"""Small transformations of an image, applied to its pixels and to its features.

For multi-view consistency after FeatUp (Fu et al., ICLR 2024): views are padded by reflection, shifted, enlarged and
mirrored. A view is never larger than the image, so pixels are enlarged and never downsampled.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def draw_views(count: int, generator: torch.Generator, max_zoom: float, max_shift: float) -> torch.Tensor:
    """Draw fp32 ``[count, 2, 3]``: maps from view to image coordinates, both in [-1, 1] (``affine_grid``'s form).

    Args:
        max_zoom: a view shows between 1 / max_zoom and all of each side.
        max_shift: how far it may reach beyond the image, relative to the image's side.
    """
    zoom = 1 + (max_zoom - 1) * torch.rand(count, generator=generator)
    margin = 1 - 1 / zoom + 2 * max_shift  # range of the view's centre, in units of half a side
    centre = (2 * torch.rand(count, 2, generator=generator) - 1) * margin[:, None]
    mirrored = torch.rand(count, generator=generator) < 0.5
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = torch.where(mirrored, -1.0, 1.0) / zoom
    theta[:, 1, 1] = 1 / zoom
    theta[:, :, 2] = centre
    return theta


def sample_views(maps: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Sample ``maps`` ``[B, C, H, W]`` in the views ``theta`` ``[B, 2, 3]``, at the same size; bilinear."""
    grid = F.affine_grid(theta.to(maps.device), list(maps.shape), align_corners=False)
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
