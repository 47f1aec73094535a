"""FeatSharp (Ranzinger et al., 2025, arXiv 2502.16025): a frozen backbone's map, two or four times finer.

Written from the paper's description, not from its code. Two maps of the finer size are computed and mixed:

- *guided*: the map of the full image, upsampled along the image's edges (:mod:`.jbu`); correct content, but blurred;
- *tiles*: the image is cut into factor x factor tiles, each computed by the backbone at its own input size, and their
  maps are stitched; sharp, but without context outside a tile.

They are averaged, by channel with a learned weight; a block of local attention and SwiGLU reads both, and its output is
added. Features are normalised first, and the backbone's fixed position pattern, a learned map, is subtracted
(de-biasing).

Our own choices, which may differ from NVlabs' code:

- PHI-S is a rotation and a scale. An MSE is invariant under rotation, so only the mean and the scale are used.
- Both maps are averaged, and the output of the block, which has ``width`` channels, is added to the average.
- There is only one block, and its only position information is a learned bias for each offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.layers import SwiGLU
from torch import nn

from radioplat.teachers.upsamplers.featsharp.jbu import JointBilateralStack
from radioplat.teachers.upsamplers.featsharp.local_attention import LocalAttention

Encode = Callable[[torch.Tensor], torch.Tensor]  # normalised [B, 3, H, W] -> raw map [B, h, w, D]


@dataclass(frozen=True)
class FeatSharpConfig:
    """Configuration of an upsampler.

    Attributes:
        dim: width of the backbone's map.
        factor: how many times finer: 2 or 4.
        grid: rows and columns of the learned position pattern; it is resized to other maps.
        debias: whether there is such a pattern.
        width, heads, window: of the attention; the window is in positions of the finer map, odd.
        jbu_dim, jbu_radius: see :class:`.jbu.JointBilateral`.
    """

    dim: int
    factor: int
    grid: tuple[int, int]
    debias: bool = True
    width: int = 256
    heads: int = 4
    window: int = 7
    jbu_dim: int = 32
    jbu_radius: int = 3


class FeatSharp(nn.Module):
    """An upsampler for the maps of one backbone; see the module's docstring.

    Attributes:
        mean, scale: of the backbone's features; set by :meth:`fit`.
    """

    def __init__(self, config: FeatSharpConfig) -> None:
        super().__init__()
        self.config = config
        self.guided = JointBilateralStack(config.factor, config.jbu_dim, config.jbu_radius)
        self.refinement = Refinement(config.dim, config.width, config.heads, config.window)
        self.pattern = nn.Parameter(torch.zeros(config.dim, *config.grid)) if config.debias else None
        self.register_buffer("mean", torch.zeros(config.dim))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, images: torch.Tensor, encode: Encode, coarse: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the finer map in the backbone's own space.

        Args:
            images: normalised for ``encode``, fp32 ``[B, 3, factor * H, factor * W]``: ``factor`` times larger than the
                backbone's input, so that the tiles contain finer detail.
            encode: the backbone, ``[B, 3, H, W]`` to ``[B, h, w, D]``; called once for each tile.
            coarse: the output of ``encode`` for the images averaged down, if the caller has it already.

        Returns:
            fp32 ``[B, factor * h, factor * w, D]``.
        """
        sharp = self.sharpen(images, encode, encode(self.shrink(images)) if coarse is None else coarse)
        return sharp.permute(0, 2, 3, 1) * self.scale + self.mean

    def sharpen(self, images: torch.Tensor, encode: Encode, coarse: torch.Tensor) -> torch.Tensor:
        """Compute the finer map as :meth:`forward`, but in normalised space: ``[B, D, factor * h, factor * w]``."""
        stitched = stitch([self.clean(encode(tile)) for tile in cut(images, self.config.factor)])
        return self.refinement(self.guided(self.clean(coarse), images), stitched)

    def shrink(self, images: torch.Tensor) -> torch.Tensor:
        """Average ``[B, 3, factor * H, factor * W]`` down to the backbone's input, ``[B, 3, H, W]``."""
        return F.avg_pool2d(images, self.config.factor)

    def normalise(self, spatial: torch.Tensor) -> torch.Tensor:
        """Normalise a raw map ``[B, h, w, D]`` to ``[B, D, h, w]`` with mean 0 and mean variance 1."""
        return ((spatial.float() - self.mean) / self.scale).permute(0, 3, 1, 2)

    def clean(self, spatial: torch.Tensor) -> torch.Tensor:
        """Normalise a raw map ``[B, h, w, D]`` to ``[B, D, h, w]``, and subtract the position pattern.

        The mean over all positions belongs to the features, so the pattern's mean is not subtracted.
        """
        normalised = self.normalise(spatial)
        if self.pattern is None:
            return normalised
        pattern = (self.pattern - self.pattern.mean((1, 2), keepdim=True))[None]
        if pattern.shape[-2:] != normalised.shape[-2:]:
            pattern = F.interpolate(pattern, size=normalised.shape[-2:], mode="bilinear", align_corners=False)
        return normalised - pattern

    @torch.no_grad()
    def fit(self, spatial: torch.Tensor) -> None:
        """Estimate mean and scale from raw maps ``[B, h, w, D]``; scale^2 is the mean of the D variances (PHI-S)."""
        rows = spatial.double().flatten(0, 2)
        self.mean.copy_(rows.mean(0))
        self.scale.copy_(rows.var(0, correction=0).mean().sqrt().clamp(min=1e-6))


class Refinement(nn.Module):
    """Mix the guided map and the tiles; before training the result is the mean of both.

    The learned ``share`` of each channel generalises to images outside the training set; the attention block needs many
    images for that. Initialised with 0, it reached 0.05 in the time in which the block overfitted three photographs.
    """

    def __init__(self, dim: int, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.inward = nn.Linear(2 * dim, width)
        self.attention_norm, self.attention = nn.LayerNorm(width), LocalAttention(width, heads, window)
        self.ffn_norm, self.ffn = nn.LayerNorm(width), SwiGLU(width, hidden_features=8 * width // 3)
        self.outward_norm, self.outward = nn.LayerNorm(width), nn.Linear(width, dim)
        self.share = nn.Parameter(torch.full((dim,), 0.5))
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)

    def forward(self, guided: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
        """Mix two maps ``[B, D, H, W]``."""
        guided, tiles = guided.permute(0, 2, 3, 1), tiles.permute(0, 2, 3, 1)
        x = self.inward(torch.cat([guided, tiles], -1))
        x = x + self.attention(self.attention_norm(x))
        x = x + self.ffn(self.ffn_norm(x))
        mixed = guided + self.share * (tiles - guided) + self.outward(self.outward_norm(x))
        return mixed.permute(0, 3, 1, 2)


def cut(images: torch.Tensor, factor: int) -> list[torch.Tensor]:
    """Cut ``[B, C, factor * H, factor * W]`` into factor^2 tiles ``[B, C, H, W]``, row by row."""
    return [tile for row in images.chunk(factor, -2) for tile in row.chunk(factor, -1)]


def stitch(tiles: list[torch.Tensor]) -> torch.Tensor:
    """Invert :func:`cut`, for any tiles ``[B, C, h, w]``."""
    factor = round(len(tiles) ** 0.5)
    return torch.cat([torch.cat(tiles[i : i + factor], -1) for i in range(0, len(tiles), factor)], -2)
