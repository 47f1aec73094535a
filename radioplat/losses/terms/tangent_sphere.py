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
    def ready(self) -> torch.Tensor:
        """True if enough samples have been counted; a scalar on the buffers' device."""
        return self._fixed & (self.directions + self.tangents >= self.samples)

    @property
    def spread(self) -> torch.Tensor:
        """phi: root of the mean over D of the tangent vectors' variance, rad, float64."""
        count = self.tangents.clamp(min=1)
        variance = self.squares / count - (self.tangent / count).square().sum()
        return (variance / len(self.tangent)).clamp(min=0).sqrt().clamp(min=_FLOOR)

    @property
    def _fixed(self) -> torch.Tensor:
        return self.directions >= self.half

    @property
    def _base(self) -> torch.Tensor:
        return F.normalize(self.direction, dim=-1)

    def compare(self, student, teacher, weight, valid):
        """Return one value per sample ``[B]``, or per position ``[B, h, w]``."""
        base = self._base.to(student)
        difference = log_map(student, base) - log_map(teacher, base)
        tangent = difference.square().mean(-1) / self.spread.square().to(student)
        # Both are computed: which one counts is not read from the device.
        return torch.where(self.ready, tangent, cosine(student, teacher))

    @torch.no_grad()
    def statistics(self, teacher, weight, valid):
        """Return the sums of directions for the first half of the samples, and of tangent vectors for the second."""
        teacher, weight = teacher.double(), weight.double()
        tangent = log_map(teacher, self._base)
        second = {"tangent": weight @ tangent, "squares": weight @ tangent.square().sum(-1), "tangents": weight.sum()}
        first = {"direction": weight @ F.normalize(teacher, dim=-1, eps=_FLOOR), "directions": weight.sum()}
        halves = ((~self._fixed, first), (self._fixed & ~self.ready, second))
        return {name: torch.where(now, value, 0.0) for now, half in halves for name, value in half.items()}
