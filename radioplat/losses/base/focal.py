"""Focal weights: positions with large teacher features have a larger weight (TAO's ``spatial_focal_*``)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_FLOOR = 1e-6


@dataclass(frozen=True)
class Focal:
    """Weights of positions.

    Attributes:
        weight: 0 for none, 1 for the teacher's saliency alone.
        gamma: exponent of the saliency.
        max_weight: of one position; 0 for no limit.
    """

    weight: float
    gamma: float = 1.0
    max_weight: float = 4.0

    def weights(self, teacher: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        """Compute weights ``[B, h, w]`` with mean 1 over the valid positions of each image; no gradient.

        With r a position's root mean square over D, divided by the image's mean of it: (1 - weight) + weight * r^gamma
        / mean(r^gamma), clipped at ``max_weight``, then scaled back to mean 1.

        Args:
            teacher: ``[B, h, w, D]``, finite.
            valid: ``[B, h, w]`` in [0, 1], or None.
        """
        teacher = teacher.detach()
        valid = teacher.new_ones(teacher.shape[:3]) if valid is None else valid
        saliency = teacher.square().mean(-1).sqrt()
        focus = (saliency / _mean(saliency, valid).clamp(min=_FLOOR)).clamp(min=_FLOOR).pow(self.gamma)
        weights = (1 - self.weight) + self.weight * focus / _mean(focus, valid).clamp(min=_FLOOR)
        if self.max_weight:
            weights = weights.clamp(max=self.max_weight)
            weights = weights / _mean(weights, valid).clamp(min=_FLOOR)
        return weights


def _mean(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Average over an image's valid positions, ``[B, 1, 1]``."""
    return (values * valid).sum((1, 2), keepdim=True) / valid.sum((1, 2), keepdim=True).clamp(min=_FLOOR)
