"""Joint bilateral upsampling: makes a coarse map finer along the edges of its image.

From FeatUp (Fu et al., ICLR 2024, arXiv 2403.10516); FeatSharp (Ranzinger et al., 2025) uses it for one of two maps.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn


class JointBilateral(nn.Module):
    """One stage, by default a doubling.

    With G the image at the finer size, F' the coarse map resized there (bicubic), and O(p) the positions of the image
    that lie within ``radius`` of p::

        out[p] = sum over q in O(p) of  w(p, q) F'[q],      w = k_range * k_spatial, scaled to a sum of 1
        k_range(p, q)   = softmax over q of  mlp(G[p]) . mlp(G[q]) / sigma_range^2
        k_spatial(p, q) = exp(-|p - q|^2 / (2 sigma_spatial^2)),  distances in positions of the finer map

    Mixing channels is left to :mod:`.featsharp`.

    Args:
        dim: channels that the colours are projected to.
        radius: of the window, in positions of the finer map.
    """

    def __init__(self, dim: int = 32, radius: int = 3) -> None:
        super().__init__()
        self.radius = radius
        self.project = nn.Sequential(nn.Conv2d(3, dim, 1), nn.GELU(), nn.Conv2d(dim, dim, 1))
        self.log_precision = nn.Parameter(torch.zeros(()))  # -2 log sigma_range
        self.log_sigma = nn.Parameter(torch.zeros(()))  # log sigma_spatial

    def forward(self, coarse: torch.Tensor, guide: torch.Tensor) -> torch.Tensor:
        """Upsample ``[B, D, h, w]`` to ``[B, D, H, W]``, guided by colours ``[B, 3, H, W]``."""
        height, width = guide.shape[-2:]
        resized = F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=False)
        weights, padded = self.weights(guide), F.pad(resized, [self.radius] * 4)
        out = torch.zeros_like(resized)
        # Neighbour by neighbour: all at once would need D * window^2 values a position.
        for k, (y, x) in enumerate(itertools.product(range(2 * self.radius + 1), repeat=2)):
            out = out + weights[:, k : k + 1] * padded[:, :, y : y + height, x : x + width]
        return out

    def weights(self, guide: torch.Tensor) -> torch.Tensor:
        """Return ``[B, K, H, W]`` for ``[B, 3, H, W]``: weights of the K = (2 radius + 1)^2 neighbours, row by row."""
        (batch, _, height, width), size = guide.shape, 2 * self.radius + 1
        keys = self.project(guide)
        neighbours = F.unfold(keys, size, padding=self.radius).view(batch, -1, size * size, height, width)
        similarity = (keys.unsqueeze(2) * neighbours).sum(1) * self.log_precision.exp()
        away = torch.arange(size, device=guide.device) - self.radius
        squared = (away[:, None].square() + away.square()).flatten()[:, None, None]
        inside = F.unfold(guide.new_ones(1, 1, height, width), size, padding=self.radius) > 0
        # The product of both kernels, scaled to 1, is the softmax of the sum of their logarithms.
        logits = similarity - squared / (2 * (2 * self.log_sigma).exp())
        return logits.masked_fill(~inside.view(1, -1, height, width), -torch.inf).softmax(1)


class JointBilateralStack(nn.Module):
    """A sequence of doublings, each with its own weights, guided by the image averaged down to its size.

    Args:
        factor: 2, 4, ...: how many times finer the map becomes.

    Raises:
        ValueError: ``factor`` is no power of two.
    """

    def __init__(self, factor: int, dim: int = 32, radius: int = 3) -> None:
        super().__init__()
        if factor < 2 or factor & (factor - 1):
            raise ValueError(f"{factor} is no power of two above 1")
        self.stages = nn.ModuleList(JointBilateral(dim, radius) for _ in range(int(math.log2(factor))))

    def forward(self, coarse: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Upsample ``[B, D, h, w]`` to ``[B, D, factor * h, factor * w]``, guided by an image ``[B, 3, H, W]``.

        The image may have any size.
        """
        for stage in self.stages:
            size = (2 * coarse.shape[-2], 2 * coarse.shape[-1])
            coarse = stage(coarse, F.adaptive_avg_pool2d(image, size))
        return coarse
