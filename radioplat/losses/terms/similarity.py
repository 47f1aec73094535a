"""Which features are alike, instead of what they are: KL between softmax distributions over cosines.

The loss of SEED (Fang et al. 2021, "SEED: Self-supervised Distillation for Visual Representation", section 3.2), whose
queue of earlier features is replaced by the micro-batch, so that values are the same at any world size. Features are
finite, fp32, and of one width; each function returns one value a sample, ``[B]``.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

TEMPERATURE = 0.07  # of both distributions, as SEED's for the student
MOST_POSITIONS = 1024  # of an image's that positions are compared to: memory grows with this times the positions
_HIDDEN = -1e4  # finite: -inf - -inf is NaN


def of_images(student: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compare each image's cosines to the teacher's features of all images of the micro-batch, its own included.

    Args:
        student, teacher: ``[B, D]``.
        weight: ``[B]``; images of weight 0 are no target.
    """
    ours, theirs = _directions(student, teacher)
    return _divergence(ours @ theirs.T, theirs @ theirs.T, weight <= 0)


def of_positions(student: torch.Tensor, teacher: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Compare each position's cosines to the teacher's features of its image's positions; mean over positions.

    Of more than :data:`MOST_POSITIONS` positions, every second, third, ... row and column is compared to.

    Args:
        student, teacher: ``[B, h, w, D]``.
        valid: ``[B, h, w]`` in [0, 1] or None; positions of 0 are ignored.
    """
    ours, theirs = _directions(student, teacher)
    valid = ours.new_ones(ours.shape[:3]) if valid is None else valid
    height, width = ours.shape[1:3]
    every = next(n for n in itertools.count(1) if -(-height // n) * -(-width // n) <= MOST_POSITIONS)
    others, shown = theirs[:, ::every, ::every].flatten(1, 2).transpose(1, 2), valid[:, ::every, ::every].flatten(1)
    valid = valid.flatten(1)
    values = _divergence(ours.flatten(1, 2) @ others, theirs.flatten(1, 2) @ others, (shown <= 0)[:, None, :])
    return (values * valid).sum(1) / valid.sum(1).clamp(min=1e-8)


def _directions(student: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.normalize(student, dim=-1, eps=1e-6), F.normalize(teacher, dim=-1, eps=1e-6)


def _divergence(ours: torch.Tensor, theirs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence of the softmax of cosines over the last dimension, without hidden targets."""
    ours, theirs = ((cosines / TEMPERATURE).masked_fill(hidden, _HIDDEN) for cosines in (ours, theirs))
    return F.kl_div(ours.log_softmax(-1), theirs.log_softmax(-1), reduction="none", log_target=True).sum(-1)
