"""Losses between class scores: one value a sample, in fp32. ``student`` and ``teacher`` are logits ``[..., C]``."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def kl_tao(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) at temperature 1, mean over elements as TAO has it (a C-th of the usual sum)."""
    return F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True).mean(-1)


def ce_tao(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """TAO's CE: binary cross-entropy with logits against the teacher's softmax, mean over elements."""
    return F.binary_cross_entropy_with_logits(student, teacher.softmax(-1), reduction="none").mean(-1)
