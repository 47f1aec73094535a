"""Feature losses: one value a position, in fp32.

Each takes ``student`` and ``teacher`` of one shape ``[..., D]`` and returns ``[...]``. Formulas: TAO's names, as in
the spec's ``loss_type``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def mse(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Mean squared difference over D (``MSE`` and ``L2``)."""
    return (student - teacher).square().mean(-1)


def l1(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference over D."""
    return (student - teacher).abs().mean(-1)


def smooth_l1(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """SmoothL1 with beta 2, mean over D (``FD``)."""
    return F.smooth_l1_loss(student, teacher, beta=2.0, reduction="none").mean(-1)


def smooth_l1_unit(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """SmoothL1 with beta 1, mean over D (``smooth_l1``; UNIC, arXiv 2408.05088, ``modeling/losses.py``)."""
    return F.smooth_l1_loss(student, teacher, beta=1.0, reduction="none").mean(-1)


def cosine(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """1 - cosine (``CS``)."""
    return 1 - F.cosine_similarity(student, teacher, dim=-1, eps=1e-6)


def balanced(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """0.9 * (1 - cosine) + 0.1 * SmoothL1(beta=2) (``BALANCED``; AM-RADIO, section 4.2)."""
    return 0.9 * cosine(student, teacher) + 0.1 * smooth_l1(student, teacher)


def dampened_mse(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """With d a difference: d^2 / 2 below 1 and 2 sqrt|d| - 3/2 above, mean over D (TAO's ``dampened_mse``).

    Value and slope are continuous at 1; the slope decreases beyond, so that a teacher's outlier channels do not
    dominate.
    """
    difference = (student - teacher).abs()
    # clamped: the slope of a root at 0 is infinite, and infinity times 0 is NaN in the branch that is not taken
    large = 2 * difference.clamp(min=1.0).sqrt() - 1.5
    return torch.where(difference <= 1, difference.square() / 2, large).mean(-1)
