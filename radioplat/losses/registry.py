"""Loss names of the spec to functions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from radioplat.losses import feature, logits
from radioplat.spec.distill import LossType, SummaryLoss

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: dict[LossType | SummaryLoss, Loss] = {
    LossType.KL: logits.kl_tao,
    LossType.CE: logits.ce_tao,
    LossType.L1: feature.l1,
    LossType.L2: feature.mse,
    LossType.MSE: feature.mse,
    LossType.FD: feature.smooth_l1,
    LossType.CS: feature.cosine,
    LossType.BALANCED: feature.balanced,
    SummaryLoss.CE: logits.ce_tao,
    SummaryLoss.cosine: feature.cosine,
}
