"""UNIC's teacher dropping (Sariyildiz et al. 2024, section 3.3), per image."""

from __future__ import annotations

import torch


def teacher_mask(losses: torch.Tensor, probability: float) -> torch.Tensor:
    """Return 1 if a teacher's loss is used for an image, else 0; float ``[T, B]``, no gradient.

    For each image the teacher with the largest loss is always used; each other one is dropped with ``probability``,
    independently. Used losses are not scaled up. The draw uses torch's generator on the losses' device.

    Args:
        losses: ``[T, B]``, as they enter the total; -inf if a teacher has no loss for an image.
    """
    keep = torch.rand(losses.shape, device=losses.device) >= probability
    # argmax selects a NaN: it must stay in the loss, so that the check for NaN finds it.
    keep.scatter_(0, losses.detach().argmax(0, keepdim=True), True)
    return keep.float()
