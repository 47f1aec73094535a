"""Losses between class scores: one value a sample, in fp32. ``student`` and ``teacher`` are logits ``[..., C]``."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def kl_tao(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) at temperature 1, mean over elements as in TAO (1 / C of the usual sum)."""
    return F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True).mean(-1)


def kl_hinton(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """T^2 KL(teacher / T || student / T), summed over classes (Hinton et al. 2015, section 2).

    T^2 keeps the gradient's size as T grows. Its mean over samples is torch's ``batchmean``.
    """
    student, teacher = (student / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)


def ce_tao(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """TAO's CE: binary cross-entropy with logits against the teacher's softmax, mean over elements."""
    return F.binary_cross_entropy_with_logits(student, teacher.softmax(-1), reduction="none").mean(-1)


def kl_sigmoid(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """T^2 KL(teacher / T || student / T) with a sigmoid per class, mean over classes.

    Detectors score this way: a softmax cannot distinguish a query with all scores low from one with all scores high.
    """
    student, teacher = student / temperature, teacher / temperature
    wanted = teacher.sigmoid()
    apart = F.binary_cross_entropy_with_logits(student, wanted, reduction="none")
    own = F.binary_cross_entropy_with_logits(teacher, wanted, reduction="none")
    return temperature**2 * (apart - own).mean(-1)
