"""Student, heads and losses as one module: what DeepSpeed, torch.compile and tests see."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.losses.reduce import masked_mean, to_grid
from radioplat.losses.registry import LOSSES
from radioplat.models.features import Features
from radioplat.models.student import Student
from radioplat.spec.resolve import ResolvedTeacher


@dataclass
class MicroBatch:
    """A micro-batch on the training device.

    Attributes:
        views: uint8 ``[B, 3, H, W]`` by view name.
        weight: float32 ``[B]``.
        label: int64 ``[B]``, -1 where there is none.
        targets: each teacher's features, bf16.
        factors: what a teacher's terms are multiplied by, 1 where it is not named. Of a teacher with factor 0 the
            targets may be any finite numbers: its head runs all the same, so that ranks whose micro-batches are seen by
            other teachers meet in the same collectives, and gets a gradient of zero.
    """

    views: dict[str, torch.Tensor]
    weight: torch.Tensor
    label: torch.Tensor
    targets: dict[str, Features] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)


class DistillModule(nn.Module):
    """One student taught by several teachers.

    ``forward(batch)`` returns scalars by name, in fp32: ``loss`` (the sum over teachers of lambda times their terms)
    and each term as ``loss/<teacher>/<summary|spatial|logits>``, without weights but with the micro-batch's factor, so
    that its mean over a step is the mean over what the teacher saw.
    """

    def __init__(self, student: Student, teachers: list[ResolvedTeacher], view: str) -> None:
        super().__init__()
        self.student, self.teachers, self.view = student, teachers, view
        self.quarantined: set[str] = set()  # teachers whose terms the run no longer trusts
        wants_map = any("spatial" in t.wanted for t in teachers)
        self._wanted = frozenset({"summary", "spatial"} if wants_map else {"summary"})

    def forward(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """See the class."""
        features = self.student(batch.views[self.view], self._wanted)
        losses: dict[str, torch.Tensor] = {}
        total = torch.zeros((), device=batch.weight.device)
        for teacher in self.teachers:
            if teacher.name in self.quarantined:
                continue
            factor = batch.factors.get(teacher.name, 1.0)
            weight = batch.weight if factor else torch.zeros_like(batch.weight)
            mine = self.student.heads[teacher.name](features, raw=False)
            theirs = batch.targets[teacher.name].map(lambda t, weight=weight: _living(t, weight))
            for term in teacher.terms:
                head = self.student.heads[teacher.name]
                ours, its = _pair(term.kind, mine, theirs)
                value = factor * masked_mean(LOSSES[term.loss](ours, head.standardize(term.kind, its)), weight)
                losses[f"loss/{teacher.name}/{term.kind}"] = value
                total = total + teacher.loss_lambda * term.weight * value
        return {"loss": total, **losses}


class ClassifyModule(nn.Module):
    """A backbone taught on labels: cross-entropy over the samples that have one, and their accuracy."""

    def __init__(self, student: Student, view: str) -> None:
        super().__init__()
        self.student, self.view = student, view
        self.quarantined: set[str] = set()

    def forward(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """``loss`` and ``accuracy``, scalars in fp32."""
        logits = self.student(batch.views[self.view], frozenset({"summary", "logits"})).named["logits"].float()
        weight = batch.weight * (batch.label >= 0)
        label = batch.label.clamp(min=0)
        loss = masked_mean(F.cross_entropy(logits, label, reduction="none"), weight)
        accuracy = masked_mean((logits.argmax(-1) == label).float(), weight)
        return {"loss": loss, "accuracy": accuracy.detach()}


def _living(target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Zeros for samples of weight 0: what a teacher said of them may be NaN, and 0 * NaN is NaN in a gradient."""
    return torch.where((weight > 0).view(-1, *[1] * (target.ndim - 1)), target, 0.0)


def _pair(kind: str, mine: Features, theirs: Features) -> tuple[torch.Tensor, torch.Tensor]:
    """Student's and teacher's tensor for one term, in fp32 and, for maps, on the coarser of the two grids."""
    if kind != "spatial":
        a, b = (mine.summary, theirs.summary) if kind == "summary" else (mine.named[kind], theirs.named[kind])
        return a.float(), b.float()
    student, teacher = mine.spatial.float(), theirs.spatial.float()
    grid = (min(student.shape[1], teacher.shape[1]), min(student.shape[2], teacher.shape[2]))
    return to_grid(student, grid), to_grid(teacher, grid)
