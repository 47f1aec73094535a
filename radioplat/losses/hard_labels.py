"""Labels beside a teacher's class scores: alpha * CE(labels) + (1 - alpha) * distillation, where there is a label."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def label_loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with each sample's label, ``[B]``, 0 where it has none.

    Args:
        logits: ``[B, C]``.
        label: int64 ``[B]``, below C; -1 where there is none.
    """
    return F.cross_entropy(logits, label, reduction="none", ignore_index=-1)


def label_share(label: torch.Tensor, alpha: float) -> torch.Tensor:
    """Share of the labels in each sample's loss, float ``[B]``: ``alpha``, and 0 for a sample without one."""
    return alpha * (label >= 0).float()
