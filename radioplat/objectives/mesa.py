"""MESA: keep the student's map close to that of its own moving average, computed on another crop.

Du et al. 2022 (Sharpness-Aware Training for Free, section 4.2) penalize the difference between a network's outputs and
those of its average, which flattens the loss at the cost of one additional forward. This is RADIO's variant: the MSE
between feature maps, each normalized by a layer norm without weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radioplat.losses.base.grid import Overlap, on_common_grid
from radioplat.losses.base.reduce import masked_mean, zero_unweighted


def mesa_loss(
    student: torch.Tensor, average: torch.Tensor, weight: torch.Tensor, overlap: Overlap | None = None
) -> torch.Tensor:
    """Compute the mean of (LN(student) - LN(average))^2 over channels, common positions and samples; a scalar, fp32.

    Args:
        student: the student's map, ``[B, h, w, D]``.
        average: the average's map, ``[B, h', w', D]``; it receives no gradient.
        weight: ``[B]``.
        overlap: geometry between the two views; None if both show the same.
    """
    mine, theirs = (zero_unweighted(x.float(), weight) for x in (student, average.detach()))
    mine, theirs = (F.layer_norm(x, x.shape[-1:]) for x in (mine, theirs))
    mine, theirs, visible = on_common_grid(mine, theirs, overlap)
    return masked_mean((mine - theirs).square().mean(-1), weight, visible)
