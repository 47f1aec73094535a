"""MESA: the student must not run away from its own moving average, seen on another crop.

Du et al. 2022 (Sharpness-Aware Training for Free, section 4.2) pull a network's outputs to those of its average, which
flattens the loss for the price of one forward. Here it is as RADIO has it: MSE between feature maps that a layer norm
without weights has brought to one scale.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radioplat.losses.base.grid import Overlap, on_common_grid
from radioplat.losses.base.reduce import masked_mean, zero_unweighted


def mesa_loss(
    student: torch.Tensor, average: torch.Tensor, weight: torch.Tensor, overlap: Overlap | None = None
) -> torch.Tensor:
    """mean (LN(student) - LN(average))^2 over channels, common positions and samples; a scalar, fp32.

    Args:
        student: its map, ``[B, h, w, D]``.
        average: that of its average, ``[B, h', w', D]``; no gradient goes into it.
        weight: ``[B]``.
        overlap: how the two views lie to each other; None where they are one.
    """
    mine, theirs = (zero_unweighted(x.float(), weight) for x in (student, average.detach()))
    mine, theirs = (F.layer_norm(x, x.shape[-1:]) for x in (mine, theirs))
    mine, theirs, visible = on_common_grid(mine, theirs, overlap)
    return masked_mean((mine - theirs).square().mean(-1), weight, visible)
