"""Input layer of a RADIO ViT: patches, cropped position embeddings (CPE), class tokens and registers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class PatchGenerator(nn.Module):
    """Converts images to tokens.

    Args:
        patch: side of a patch in pixels.
        width: token width D.
        max_size: side in pixels of the square image that the position table spans.
        num_class_tokens: one for each distinct teacher.
        num_registers: tokens that no head reads (Darcet et al. 2023).

    Position embeddings are cropped (CPE, AM-RADIO section 4.3): in training, each image uses a random crop of the
    table, of scale U(sqrt 0.1, 1) and log-aspect U(+-ln 4/3); in evaluation the table is resized to max(h, w)^2, and
    its top-left h x w is used. Draws use torch's generator, which the worker loop seeds by step and micro-batch.

    Attributes:
        crops_positions: if false, training uses the same positions as evaluation, as a plain ViT does.
        crop_sides: the crop of ``model.backbone.cpe_crop: sides``.
        position_dropout: share of images that get no positions in training.
    """

    def __init__(self, patch: int, width: int, max_size: int, num_class_tokens: int, num_registers: int) -> None:
        super().__init__()
        self.patch = patch
        self.num_class_tokens, self.num_registers = num_class_tokens, num_registers
        self.side = max_size // patch
        self.crops_positions = True
        self.crop_sides = False
        self.position_dropout = 0.0
        self.embedder = nn.Linear(3 * patch * patch, width, bias=False)
        self.pos_embed = nn.Parameter(torch.randn(1, self.side**2, width) * width**-0.5)
        self.cls_token = nn.ParameterDict(
            {"token": nn.Parameter(torch.randn(num_class_tokens + num_registers, width) * width**-0.5)}
        )

    @property
    def num_prefix(self) -> int:
        """Number of class tokens and registers, which come before the patches."""
        return self.num_class_tokens + self.num_registers

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Convert images ``[B, 3, H, W]`` to tokens ``[B, prefix + H/p * W/p, D]``, patches in row-major order."""
        b, c, height, width = images.shape
        p = self.patch
        h, w = height // p, width // p
        patches = images.reshape(b, c, h, p, w, p).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w, c * p * p)
        positions = self.positions(b, h, w)
        if self.training and self.position_dropout:
            kept = torch.rand(b, 1, 1, device=positions.device) > self.position_dropout
            positions = torch.where(kept, positions, 0)
        tokens = self.embedder(patches) + positions
        prefix = self.cls_token["token"].unsqueeze(0).expand(b, -1, -1)
        return torch.cat([prefix, tokens], dim=1)

    def positions(self, batch: int, h: int, w: int) -> torch.Tensor:
        """Return position embeddings ``[B or 1, h * w, D]``."""
        table = self.pos_embed.reshape(1, self.side, self.side, -1).permute(0, 3, 1, 2).float()
        own_size = self.crop_sides and (h, w) == (self.side, self.side)
        if self.training and self.crops_positions and not own_size:
            grid = self._random_crops(batch, h, w, table.device)
            corners = self.crop_sides
            crops = F.grid_sample(
                table.expand(batch, -1, -1, -1), grid, mode="bilinear", padding_mode="border", align_corners=corners
            )
        else:
            longest = torch.sym_max(h, w)
            # An exported graph with dynamic size has no branches; at the table's own size resizing is the identity.
            if isinstance(longest, torch.SymInt) or longest != self.side:
                table = F.interpolate(table, size=(longest, longest), mode="bilinear", align_corners=False)
            crops = table[:, :, :h, :w]
        return crops.flatten(2).transpose(1, 2).to(self.pos_embed.dtype)

    def _random_crops(self, batch: int, h: int, w: int, device: torch.device) -> torch.Tensor:
        """Draw sampling grids ``[B, h, w, 2]`` in [-1, 1], (x, y)."""
        draws = torch.rand(batch, 4, device=device)
        low = math.sqrt(0.1)
        scale = low + (1 - low) * draws[:, 0]
        aspect = torch.exp((2 * draws[:, 1] - 1) * math.log(4 / 3))
        ratio = aspect if self.crop_sides else aspect.sqrt()
        wide, tall = (scale * ratio).clamp(max=1), (scale / ratio).clamp(max=1)
        left, top = draws[:, 2] * (1 - wide), draws[:, 3] * (1 - tall)
        if self.crop_sides:
            xs, ys = (torch.linspace(0, 1, steps, device=device) for steps in (w, h))
        else:
            xs, ys = ((torch.arange(steps, device=device) + 0.5) / steps for steps in (w, h))
        x = left[:, None] + wide[:, None] * xs
        y = top[:, None] + tall[:, None] * ys
        grid = torch.stack([x[:, None, :].expand(-1, h, -1), y[:, :, None].expand(-1, -1, w)], dim=-1)
        return 2 * grid - 1
