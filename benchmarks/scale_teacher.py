"""A teacher that computes nothing and answers in the shapes of a ViT: what is left is the service around it."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.models.features import Features


class Still(nn.Module):
    """``type: benchmarks.scale_teacher:Still``: zeros, of ``width`` channels at a stride of 16."""

    stride = 16

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.width, self.weight = width, nn.Parameter(torch.zeros(1))

    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Images ``[B, 3, H, W]``."""
        rows, _, height, width = images.shape
        spatial = self.weight.new_zeros((rows, height // self.stride, width // self.stride, self.width))
        return Features(self.weight.new_zeros((rows, self.width)), spatial)
