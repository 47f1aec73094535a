"""Student, heads and losses as one module: what DeepSpeed, torch.compile and tests see."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.losses.grid import Overlap, on_common_grid
from radioplat.losses.reduce import masked_mean
from radioplat.losses.registry import LOSSES
from radioplat.models.capture import as_features, captured
from radioplat.models.features import Features
from radioplat.models.student import Student
from radioplat.spec.resolve import Bound, ResolvedTeacher


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
        overlaps: how a teacher's view lies to the student's, where they differ or a mask hides part of one.
    """

    views: dict[str, torch.Tensor]
    weight: torch.Tensor
    label: torch.Tensor
    targets: dict[str, Features] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    overlaps: dict[str, Overlap] = field(default_factory=dict)


class DistillModule(nn.Module):
    """One student taught by several teachers.

    ``forward(batch)`` returns scalars by name, in fp32: ``loss`` (the sum over teachers of lambda times their terms,
    and weight times each binding) and each term as ``loss/<teacher>/<summary|spatial|logits|binding_0>``, without
    weights but with the micro-batch's factor, so that its mean over a step is the mean over what the teacher saw.
    """

    def __init__(self, student: Student, teachers: list[ResolvedTeacher], view: str) -> None:
        super().__init__()
        self.student, self.teachers, self.view = student, teachers, view
        self.quarantined: set[str] = set()  # teachers whose terms the run no longer trusts
        wants_map = any("spatial" in t.wanted for t in teachers)
        self._wanted = frozenset({"summary", "spatial"} if wants_map else {"summary"})
        self._captures = sorted({bound.student_module for t in teachers for bound in t.bindings})
        self._projections = {b.name: student.heads[t.name].bindings for t in teachers for b in t.bindings}

    def forward(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """See the class."""
        images = batch.views[self.view]
        with captured(self.student.backbone.target, self._captures) as outputs:
            features = self.student(images, self._wanted)
        grid = images.shape[-2] // self.student.stride, images.shape[-1] // self.student.stride
        losses: dict[str, torch.Tensor] = {}
        total = torch.zeros((), device=batch.weight.device)
        for teacher in self.teachers:
            if teacher.name in self.quarantined:
                continue
            factor = batch.factors.get(teacher.name, 1.0)
            weight = batch.weight if factor else torch.zeros_like(batch.weight)
            mine = self.student.head(teacher.name, features)
            theirs = batch.targets[teacher.name].map(lambda t, weight=weight: _living(t, weight))
            for term in teacher.terms:
                head = self.student.heads[teacher.name]
                *pair, seen = _pair(term.kind, mine, theirs, batch.overlaps.get(teacher.name))
                pair = (head.standardize(term.kind, x) for x in pair)
                value = factor * masked_mean(LOSSES[term.loss](*pair), weight, seen)
                losses[f"loss/{teacher.name}/{term.kind}"] = value
                total = total + teacher.loss_lambda * term.weight * value
            for bound in teacher.bindings:
                output = as_features(outputs[bound.student_module], grid)
                *pair, seen = self._bound(bound, output, theirs, batch.overlaps.get(teacher.name))
                value = factor * masked_mean(LOSSES[bound.loss](*pair), weight, seen)
                losses[f"loss/{teacher.name}/{bound.name}"] = value
                total = total + bound.weight * value
        return {"loss": total, **losses}

    def _bound(
        self, bound: Bound, mine: torch.Tensor, targets: Features, overlap: Overlap | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        theirs, projections = targets.named[bound.key].float(), self._projections[bound.name]
        if bound.name in projections:
            mine = projections[bound.name](mine)
        return on_common_grid(mine.float(), theirs, overlap) if mine.ndim == 4 else (mine.float(), theirs, None)


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


def _pair(
    kind: str, mine: Features, theirs: Features, overlap: Overlap | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Student's and teacher's tensor for one term in fp32; maps on the common grid, with what both see of it."""
    if kind == "spatial":
        return on_common_grid(mine.spatial.float(), theirs.spatial.float(), overlap)
    a, b = (mine.summary, theirs.summary) if kind == "summary" else (mine.named[kind], theirs.named[kind])
    return a.float(), b.float(), None
