"""Fidelity: how well a student's head says what its teacher says, on images neither was fitted on.

Our own measure. Raw features share a large mean, so that a student which always answers the mean gets a high plain
cosine. Here the teacher's mean feature over TRAINING images is taken from both sides first:
``mean cos(student - mean, teacher - mean)``, for which a constant answer is worth 0. The plain cosine is shown beside,
and linear CKA, which asks only whether both tell the same things apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.cka import RowSample

# What is left of a vector after its mean is taken counts as nothing below this share of the mean: fp32 rounding.
_NOTHING = 1e-6


@dataclass(frozen=True)
class FidelityResult:
    """Outcome of a :class:`FidelityMeter`.

    Attributes:
        centered: mean cosine after both sides lost the teacher's training mean, in [-1, 1]; the fidelity.
        plain: mean cosine of the raw vectors, in [-1, 1].
        count: vectors compared: images for a summary, positions of all images for a map.
        cka: debiased linear CKA over a sample of them, see ``radioplat.evaluation.metrics.cka``; None where it was not
            asked for.
    """

    centered: float
    plain: float
    count: int
    cka: float | None = None


class TeacherMean:
    """Mean feature of a teacher over training images, accumulated in float64.

    For maps the mean is over images and positions alike: one vector ``[D]``.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: Tensor | None = None

    def update(self, features: Tensor, valid: Tensor | None = None) -> None:
        """Add features ``[..., D]``, all of them or those where ``valid`` (bool ``[...]``) is True."""
        rows = _rows(features, valid)
        total = rows.sum(dim=0)
        self._sum = total if self._sum is None else self._sum + total
        self.count += len(rows)

    def merge(self, other: TeacherMean) -> None:
        """Add what another accumulator has seen."""
        if other._sum is not None:
            self._sum = other._sum if self._sum is None else self._sum + other._sum
            self.count += other.count

    @property
    def mean(self) -> Tensor:
        """float64 ``[D]``.

        Raises:
            RadioplatError: nothing was added.
        """
        if self._sum is None or not self.count:
            raise RadioplatError("no training image to take the teacher's mean over", where="dataset.train_dataset")
        return self._sum / self.count


class FidelityMeter:
    """Accumulates :class:`FidelityResult` batch by batch.

    Args:
        mean: ``[D]``, the teacher's mean over training images (:class:`TeacherMean`).
        sample: keeps the vectors for CKA, of features without ``valid``; None for no CKA.
    """

    def __init__(self, mean: Tensor, sample: RowSample | None = None) -> None:
        self._sample = sample
        self._mean = mean.detach().double()
        self._centered = 0.0
        self._plain = 0.0
        self._count = 0

    def update(self, student: Tensor, teacher: Tensor, valid: Tensor | None = None) -> None:
        """Compare the student's head output with the teacher's features.

        Args:
            student: ``[N, D]`` or ``[N, H, W, D]`` in the teacher's raw space, any float dtype.
            teacher: the same shape.
            valid: bool of that shape without D; where False a vector is left out.

        Raises:
            ValueError: shapes differ, or CKA was asked for of features with holes.
            RadioplatError: a feature is not finite.
        """
        if valid is not None and self._sample is not None:
            raise ValueError("CKA takes whole maps")
        if student.shape != teacher.shape or student.shape[-1] != len(self._mean):
            shapes = [list(each.shape) for each in (student, teacher, self._mean)]
            raise ValueError("student {}, teacher {} and mean {} do not fit".format(*shapes))
        ours, theirs = _rows(student, valid), _rows(teacher, valid)
        for name, rows in (("student", ours), ("teacher", theirs)):
            if not rows.isfinite().all():
                raise RadioplatError(f"the {name}'s features are not finite")
        mean = self._mean.to(ours.device)
        floor = _NOTHING * float(mean.norm())
        self._centered += float(_cosine(ours - mean, theirs - mean, floor).sum())
        self._plain += float(_cosine(ours, theirs, 0.0).sum())
        self._count += len(ours)
        if self._sample is not None:
            self._sample.add(student, teacher)

    def result(self) -> FidelityResult:
        """The means so far.

        Raises:
            RadioplatError: nothing was compared.
        """
        if not self._count:
            raise RadioplatError("no held-out image to measure fidelity on", where="dataset.val_dataset")
        cka = None if self._sample is None else self._sample.cka()
        return FidelityResult(self._centered / self._count, self._plain / self._count, self._count, cka)


def fidelity(student: Tensor, teacher: Tensor, mean: Tensor, valid: Tensor | None = None) -> FidelityResult:
    """:class:`FidelityMeter` for features that are in memory at once; shapes as there."""
    meter = FidelityMeter(mean)
    meter.update(student, teacher, valid)
    return meter.result()


def _rows(features: Tensor, valid: Tensor | None) -> Tensor:
    """``[..., D]`` as float64 ``[R, D]``, only where valid."""
    features = features.detach()
    return (features.flatten(0, -2) if valid is None else features[valid]).double()


def _cosine(a: Tensor, b: Tensor, floor: float) -> Tensor:
    """Cosine of rows; 0 where either row is no longer than ``floor`` and so has no direction."""
    lengths = a.norm(dim=1), b.norm(dim=1)
    ok = (lengths[0] > floor) & (lengths[1] > floor)
    product = torch.where(ok, lengths[0] * lengths[1], 1.0)
    return torch.where(ok, (a * b).sum(dim=1) / product, 0.0).clamp(-1.0, 1.0)
