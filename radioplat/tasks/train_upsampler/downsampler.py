"""The downsampler of the consistency loss: predicts the backbone's coarse map from the fine one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

_OUTSIDE = -6.0  # initially the cell itself has 98 % of the weight


class BlurDownsampler(nn.Module):
    """A learned blur, the same for all channels (after FeatUp, Fu et al., ICLR 2024).

    Its weights are positive and sum to 1, so it cannot sharpen. It covers more than a position's own cell, because the
    receptive field does; how much more is learned. It is initialised close to the mean of the cell.

    Args:
        factor: fine positions per coarse position, along each axis. The blur covers the cell and its eight neighbours.
    """

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        logits = torch.full((3 * factor, 3 * factor), _OUTSIDE)
        logits[factor : 2 * factor, factor : 2 * factor] = 0
        self.logits = nn.Parameter(logits)

    def forward(self, fine: torch.Tensor) -> torch.Tensor:
        """Return ``[B, D, h, w]`` from ``[B, D, factor * h, factor * w]``."""
        padded = F.pad(fine, [self.factor] * 4, mode="replicate")
        cells = padded.unfold(2, 3 * self.factor, self.factor).unfold(3, 3 * self.factor, self.factor)
        return cells.flatten(4) @ self.logits.flatten().softmax(0)  # much faster than a one-channel convolution
