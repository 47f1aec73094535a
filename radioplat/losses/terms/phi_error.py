"""The squared error of PHI-S targets, computed on raw features."""

from __future__ import annotations

import torch

from radioplat.losses.base.criterion import Criterion
from radioplat.losses.terms.feature import mse

_FLOOR = 1e-6


class PhiError(Criterion):
    """Mean squared difference of both sides under PHI-S of the teacher's features (Ranzinger et al. 2024).

    PHI-S maps y to H U^T (y - mu) / phi, phi^2 the mean eigenvalue of the teacher's covariance. mu cancels between the
    two sides and H U^T is orthogonal, so the squared error depends on phi alone: ``mean((x - y)^2) / phi^2``. phi^2 is
    the mean variance of the teacher's channels over all positions up to the previous step; in the first step it is 1.

    Args:
        width: of the teacher's features.
    """

    def __init__(self, width: int) -> None:
        super().__init__(total=(width,), squares=(), rows=())

    @property
    def phi(self) -> torch.Tensor:
        """phi as of the previous step, float64."""
        count = self.rows.clamp(min=1)
        variance = (self.squares / count - (self.total / count).square().sum()) / len(self.total)
        return torch.where(self.rows > 0, variance.clamp(min=0).sqrt().clamp(min=_FLOOR), 1.0)

    def compare(self, student, teacher, weight, valid):
        """Return one value per sample ``[B]``, or per position ``[B, h, w]``."""
        return mse(student, teacher) / self.phi.square().to(student)

    @torch.no_grad()
    def statistics(self, teacher, weight, valid):
        """Return sums over vectors that have weight; the others are zeros."""
        counts = (weight > 0).view(-1, *[1] * (teacher.ndim - 2))
        counts = counts.expand(teacher.shape[:-1]) if valid is None else counts & (valid > 0)
        rows = teacher.flatten(0, -2).double()
        return {"total": rows.sum(0), "squares": rows.square().sum(), "rows": counts.sum().double()}
