"""Labels together with teachers, for each sample that has a label; the others have the distillation loss alone.

``alpha``: alpha * CE(labels) + (1 - alpha) * sum of lambda_i L_i (Hinton et al. 2015). ``tao``: TAO's ``loss_lambda``,
(1 - sum of lambda_i) * CE(labels) + sum of lambda_i L_i.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def label_loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Compute cross-entropy with each sample's label, ``[B]``, 0 without a label.

    Args:
        logits: ``[B, C]``.
        label: int64 ``[B]``, below C; -1 for none.
    """
    return F.cross_entropy(logits, label, reduction="none", ignore_index=-1)


def label_share(label: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the weight of the label in each sample's loss, float ``[B]``: ``weight``, and 0 for a sample without
    one."""
    return weight * (label >= 0).float()
