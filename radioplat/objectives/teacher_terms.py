"""The loss terms of one teacher: its head, the common grid, the target transform and the criteria as one function.

The function changes no state and reads nothing from the device, so that it is one graph if it is compiled. What changes
(running statistics, the teachers' balance) and what differs between micro-batches without being a tensor (factors,
dropped teachers) stays with :class:`radioplat.objectives.distill.DistillObjective`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from radioplat.losses.base.criterion import Criterion
from radioplat.losses.base.grid import Overlap, on_common_grid
from radioplat.losses.base.reduce import weighted_mean, zero_unweighted
from radioplat.losses.terms.hard_labels import label_loss
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.objectives.compiled import compiled
from radioplat.spec.resolved.teacher import ResolvedTeacher


@dataclass
class Part:
    """A loss term of a teacher in a micro-batch.

    Attributes:
        scale: the term's weight.
        values, weight: of each sample, ``[B]``.
        known: the weighted mean of ``values``, a scalar, if it was computed already.
    """

    scale: float
    values: torch.Tensor
    weight: torch.Tensor
    known: torch.Tensor | None = None

    def mean(self, kept: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weighted mean over samples of ``values * kept``, times ``scale``; ``kept`` is 0 or 1, ``[B]``."""
        if kept is not None:
            mean = weighted_mean(self.values * kept, self.weight)
        else:
            mean = weighted_mean(self.values, self.weight) if self.known is None else self.known
        return mean if self.scale == 1 else self.scale * mean


class Compared(NamedTuple):
    """One term of a teacher in a micro-batch.

    Attributes:
        values, counts: value and weight of each sample, fp32 ``[B]``.
        mean: the weighted mean of ``values``, a scalar.
        statistics: contributions to the criterion's running statistics.
    """

    values: torch.Tensor
    counts: torch.Tensor
    mean: torch.Tensor
    statistics: dict[str, torch.Tensor]


class TeacherTerms:
    """Compute the terms of ``teacher`` from the student's features and the teacher's.

    It is no ``nn.Module``, so that the names of the parameters and statistics, which it shares with the objective, do
    not change.

    Args:
        criteria: the objective's criteria, by ``<teacher>/<term>``.
        classifies: the student has a classifier, whose logits replace those of the head.
        learns_labels: also compute the label loss of the head's logits.
    """

    def __init__(
        self,
        teacher: ResolvedTeacher,
        student: Student,
        criteria: nn.ModuleDict,
        classifies: bool,
        learns_labels: bool,
    ) -> None:
        self._teacher, self._student, self._criteria = teacher, student, criteria
        self._classifies, self._learns_labels = classifies, learns_labels
        self._run = self.compute

    def compile(self, backend: str) -> None:
        """From now on, run one compiled graph for each form of the inputs."""
        self._run = compiled(self.compute, backend)

    def __call__(
        self, features: Features, target: Features, weight: torch.Tensor, label: torch.Tensor, overlap: Overlap | None
    ) -> tuple[list[Compared], torch.Tensor | None]:
        """Return the terms in the teacher's order, and each sample's label loss ``[B]`` if labels are learnt.

        Args:
            features: of the student's backbone.
            target: of the teacher, raw; may be NaN for samples without weight.
            weight: of the samples for this teacher, ``[B]``.
            label: int64 ``[B]``, -1 without a label.
            overlap: geometry of the teacher's view relative to the student's; None if both show the same.
        """
        return self._run(features, target, weight, label, overlap)

    def compute(
        self, features: Features, target: Features, weight: torch.Tensor, label: torch.Tensor, overlap: Overlap | None
    ) -> tuple[list[Compared], torch.Tensor | None]:
        """See :meth:`__call__`."""
        head, mine = self._student.heads[self._teacher.name], self.in_space(features)
        theirs = target.map(lambda t: zero_unweighted(t, weight))
        compared = []
        for term in self._teacher.terms:
            compare = self.criterion(term.name)
            a, b, visible = pair(term.kind, mine, theirs, overlap)
            if compare.raw:
                a = head.raw(term.kind, a)
            else:
                b = head.standardize(term.kind, b)
            values, counts, statistics = compare.evaluate(a, b, weight, visible)
            compared.append(Compared(values, counts, weighted_mean(values, counts), statistics))
        if not self._learns_labels:
            return compared, None
        return compared, label_loss(zero_unweighted(mine.named["logits"].float(), weight), label)

    def in_space(self, features: Features) -> Features:
        """Return the student's features from the head for the teacher, normalized as the losses need them."""
        mine = self._student.heads[self._teacher.name](features, raw=False)
        if self._classifies and "logits" in self._teacher.wanted:
            mine.named["logits"] = features.named["logits"]
        return mine

    def criterion(self, term: str) -> Criterion:
        """Return the criterion of the teacher's ``term``."""
        return self._criteria[f"{self._teacher.name}/{term}"]


def pair(
    kind: str, mine: Features, theirs: Features, overlap: Overlap | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the student's and the teacher's tensor for one term, fp32, and the share of each position that both see.

    Maps are resized to their common grid. The share is None for vectors, and if it is 1 everywhere.
    """
    if kind == "spatial":
        assert mine.spatial is not None and theirs.spatial is not None
        return on_common_grid(mine.spatial.float(), theirs.spatial.float(), overlap)
    a, b = (mine.summary, theirs.summary) if kind == "summary" else (mine.named[kind], theirs.named[kind])
    assert a is not None and b is not None
    return a.float(), b.float(), None


def scaled(factor: float | torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return ``factor * value``; a factor of 1 launches nothing."""
    return value if isinstance(factor, float) and factor == 1 else factor * value


def total_of(values: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Return the sum of scalars in their order, fp32 on the device of ``like``; 0 without any."""
    if not values:
        return torch.zeros((), device=like.device)
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
