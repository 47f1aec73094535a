"""Summaries compared in the plane tangent to the sphere at the teacher's mean direction."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radioplat.losses.base.criterion import Criterion
from radioplat.losses.terms.angle import angle_between
from radioplat.losses.terms.feature import cosine

SAMPLES = 16_384  # number of samples for the statistics; until then the cosine loss is used
_FLOOR = 1e-6


def log_map(x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return the tangent vector at ``base`` towards ``x`` whose length is the angle between them.

    v = theta / sin(theta) * (x / |x| - cos(theta) base), theta as :func:`angle_between` clamps it.

    Args:
        x: ``[..., D]``.
        base: ``[D]``, of length 1.
    """
    x = F.normalize(x, dim=-1, eps=_FLOOR)
    theta = angle_between(x, base)[..., None]
    return theta / theta.sin() * (x - (x @ base)[..., None] * base)


class TangentSphere(Criterion):
    """MSE of raw summaries ``[B, D]`` after the log map at the mean direction and PHI-S; at first the cosine loss.

    The first half of ``samples`` gives the mean direction, which is then fixed; the second half gives mean m and
    covariance of the teacher's tangent vectors there. PHI-S (Ranzinger et al. 2024) maps v to H U^T (v - m) / phi, with
    phi^2 the mean eigenvalue of the covariance. m cancels between student and teacher, and H U^T is orthogonal, so the
    squared error depends on phi alone: neither eigenvectors nor a Hadamard matrix are needed here.
    """

    raw = True

    def __init__(self, width: int, samples: int = SAMPLES) -> None:
        super().__init__(direction=(width,), directions=(), tangent=(width,), squares=(), tangents=())
        self.half, self.samples = samples / 2, samples

    @property
    def ready(self) -> bool:
        """True if enough samples have been counted."""
        return bool(self._fixed and self.directions + self.tangents >= self.samples)

    @property
    def spread(self) -> torch.Tensor:
        """phi: root of the mean over D of the tangent vectors' variance, rad, float64."""
        count = self.tangents.clamp(min=1)
        variance = self.squares / count - (self.tangent / count).square().sum()
        return (variance / len(self.tangent)).clamp(min=0).sqrt().clamp(min=_FLOOR)

    @property
    def _fixed(self) -> bool:
        return bool(self.directions >= self.half)

    @property
    def _base(self) -> torch.Tensor:
        return F.normalize(self.direction, dim=-1)

    def compare(self, student, teacher, weight, valid):
        """Return one value per sample ``[B]``, or per position ``[B, h, w]``."""
        if not self.ready:
            self._see(teacher, weight)
            return cosine(student, teacher)
        base = self._base.to(student)
        return (log_map(student, base) - log_map(teacher, base)).square().mean(-1) / self.spread.square().to(student)

    @torch.no_grad()
    def _see(self, teacher: torch.Tensor, weight: torch.Tensor) -> None:
        teacher, weight = teacher.double(), weight.double()
        if self._fixed:
            tangent = log_map(teacher, self._base)
            self.add("tangent", weight @ tangent)
            self.add("squares", weight @ tangent.square().sum(-1))
            self.add("tangents", weight.sum())
        else:
            self.add("direction", weight @ F.normalize(teacher, dim=-1, eps=_FLOOR))
            self.add("directions", weight.sum())
