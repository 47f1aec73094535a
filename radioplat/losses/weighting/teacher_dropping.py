"""UNIC's teacher dropping (Sariyildiz et al. 2024, section 3.3), an image at a time."""

from __future__ import annotations

import torch


def kept(losses: torch.Tensor, probability: float) -> torch.Tensor:
    """1 where a teacher's loss counts for an image, else 0; float ``[T, B]``, no gradient.

    For each image the teacher with the largest loss always counts; each other one is dropped with ``probability``,
    by itself. Kept losses are not scaled up. The draw is of torch's generator on the losses' device.

    Args:
        losses: ``[T, B]``, as they enter the total; -inf where a teacher says nothing of an image.
    """
    keep = torch.rand(losses.shape, device=losses.device) >= probability
    # A NaN is the largest of all: it must reach the guard that looks for it.
    keep.scatter_(0, losses.detach().argmax(0, keepdim=True), True)
    return keep.float()
