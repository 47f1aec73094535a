"""Loss terms as modules: compare a student's and a teacher's features, one value a sample."""

from __future__ import annotations

from collections.abc import Callable

import torch

from radioplat.losses.base.focal import Focal
from radioplat.losses.base.reduce import sample_means, zero_unweighted
from radioplat.losses.base.running_statistics import Running

Pair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OfMap = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
OfBatch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Criterion(Running):
    """Base class of loss terms: masks samples and positions without weight, and calls :meth:`compare`.

    :meth:`evaluate` is the arithmetic and changes nothing, so it can be part of a compiled graph; :meth:`forward` also
    counts the statistics.

    Attributes:
        raw: whether it needs raw features, not those normalized by ``distill.target_norm``.
    """

    raw = False

    def forward(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        weight: torch.Tensor,
        valid: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute value ``[B]`` and weight ``[B]`` of each sample; without weight, the value is 0 and there is no
        gradient.

        Args:
            student, teacher: ``[B, D]``, or ``[B, h, w, D]`` on one grid; fp32; may be NaN where they have no weight.
            weight: ``[B]``.
            valid: ``[B, h, w]`` in [0, 1], or None.
        """
        values, counts, statistics = self.evaluate(student, teacher, weight, valid)
        self.count(statistics)
        return values, counts

    def evaluate(
        self, student: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Compute what :meth:`forward` returns, and the micro-batch's :meth:`statistics`; change nothing."""
        student, teacher = zero_unweighted(student, weight, valid), zero_unweighted(teacher, weight, valid)
        values, counts = sample_means(self.compare(student, teacher, weight, valid), weight, valid)
        return values, counts, self.statistics(teacher, weight, valid)

    def statistics(
        self, teacher: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """Return the micro-batch's contributions to the running statistics by buffer, float64 without gradient.

        No number is read from the device. Arguments are those of :meth:`compare`.
        """
        return {}

    def compare(
        self, student: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute one value a sample ``[B]``, or a position ``[B, h, w]``; features without weight are zeros."""
        raise NotImplementedError


class Pointwise(Criterion):
    """A loss from a function of two vectors; positions of maps may have focal weights."""

    def __init__(self, function: Pair, focal: Focal | None = None) -> None:
        super().__init__()
        self.function, self.focal = function, focal

    def compare(self, student, teacher, weight, valid):
        """Return one value per sample ``[B]``, or per position ``[B, h, w]``."""
        values = self.function(student, teacher)
        return values if self.focal is None else values * self.focal.weights(teacher, valid)


class MapWise(Criterion):
    """A loss from a function of two maps."""

    def __init__(self, function: OfMap) -> None:
        super().__init__()
        self.function = function

    def compare(self, student, teacher, weight, valid):
        """Return one value per sample ``[B]``, or per position ``[B, h, w]``."""
        return self.function(student, teacher, valid)


class BatchWise(Criterion):
    """A loss from a function of all vectors of a micro-batch; of a map, the mean over its valid positions."""

    def __init__(self, function: OfBatch) -> None:
        super().__init__()
        self.function = function

    def compare(self, student, teacher, weight, valid):
        """Return one value per sample ``[B]``, or per position ``[B, h, w]``."""
        if student.ndim > 2:
            if valid is None:
                student, teacher = student.mean((1, 2)), teacher.mean((1, 2))
            else:
                count = valid.sum((1, 2))
                share = (valid / count.clamp(min=1e-6)[:, None, None])[..., None]
                student, teacher = (student * share).sum((1, 2)), (teacher * share).sum((1, 2))
                weight = torch.where(count > 0, weight, 0.0)
        return self.function(student, teacher, weight)
