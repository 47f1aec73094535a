"""The balanced summary loss: angles relative to the teacher's angular dispersion.

Teachers whose summaries lie in a narrow cone would otherwise have a smaller weight (C-RADIOv4 report: SigLIP2-g has a
dispersion of 0.694, DINOv3-H+ of 2.120).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radioplat.losses.base.criterion import Criterion

_MOST = 1 - 1e-6  # limit of |cos|: the derivative of arccos is infinite at 1
_FLOOR = 1e-4  # minimum dispersion, rad^2
_SHORT = 1e-6  # the direction of a vector below this length is meaningless


def angle_between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the angle in rad between vectors ``[..., D]``, ``[...]``: arccos of the cosine clamped to +-(1 - 1e-6)."""
    cosine = (F.normalize(x, dim=-1, eps=_SHORT) * F.normalize(y, dim=-1, eps=_SHORT)).sum(-1)
    return cosine.clamp(-_MOST, _MOST).acos()


class Angle(Criterion):
    """theta(x, y)^2 / Disp of raw summaries ``[B, D]``.

    Disp is the mean of theta(y, mu)^2 over the teacher's summaries so far, with mu the mean direction E[y / |y|] as of
    the step before. In the first two steps, while it is unknown, Disp is 1.
    """

    raw = True

    def __init__(self, width: int) -> None:
        super().__init__(direction=(width,), squares=(), samples=())

    @property
    def dispersion(self) -> torch.Tensor:
        """Disp as of the previous step, rad^2, float64."""
        return torch.where(self.samples > 0, self.squares / self.samples.clamp(min=1), 1.0).clamp(min=_FLOOR)

    def compare(self, student, teacher, weight, valid):
        """Return one value per sample ``[B]``, or per position ``[B, h, w]``."""
        return angle_between(student, teacher).square() / self.dispersion.to(student)

    @torch.no_grad()
    def statistics(self, teacher, weight, valid):
        """Return the sum of directions and, once there is a mean direction, that of squared angles to it."""
        teacher, weight, known = teacher.double(), weight.double(), self.direction.any()
        return {
            "direction": weight @ F.normalize(teacher, dim=-1, eps=_SHORT),
            "squares": torch.where(known, weight @ angle_between(teacher, self.direction).square(), 0.0),
            "samples": torch.where(known, weight.sum(), 0.0),
        }
