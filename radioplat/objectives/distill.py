"""The training modules of distillation and classification: student, heads and losses as one module for DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.losses.base.grid import Overlap, on_common_grid
from radioplat.losses.base.reduce import masked_mean, weighted_mean, zero_unweighted
from radioplat.losses.registry import criterion
from radioplat.losses.terms.hard_labels import label_loss, label_share
from radioplat.losses.weighting.balance import TeacherBalance
from radioplat.losses.weighting.teacher_dropping import teacher_mask
from radioplat.models.capture import as_features, captured
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.objectives.inner_teachers import answers_inside, with_answers
from radioplat.objectives.mesa import mesa_loss
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import Objective, StepContext
from radioplat.objectives.peers import Peer
from radioplat.spec.resolved.labels import label_weight
from radioplat.spec.resolved.teacher import AVERAGE, ResolvedTeacher
from radioplat.spec.resolved.terms import Term
from radioplat.spec.schema.distill import AverageView, DistillConfig, LabelForm, Source


@dataclass
class _Part:
    """A loss term of a teacher in a micro-batch: the term's weight, and each sample's value and weight, ``[B]``."""

    scale: float
    values: torch.Tensor
    weight: torch.Tensor

    def mean(self, kept: torch.Tensor | float = 1.0) -> torch.Tensor:
        """Return the weighted mean over samples of ``values * kept``, times ``scale``; ``kept`` is 0 or 1, ``[B]``."""
        return self.scale * weighted_mean(self.values * kept, self.weight)


class DistillObjective(Objective):
    """Train one student by several teachers.

    ``forward(batch)`` returns fp32 scalars by name. ``loss`` is the sum over teachers of ``loss_lambda`` times their
    terms, with the teacher balance and teacher dropping of ``config``, plus each binding's loss times its weight, and
    the labels', peers' and MESA losses. Each term is logged as ``loss/<teacher>/<name>``, without weights but with the
    micro-batch's factor, so that its mean over a step is the mean over the micro-batches that the teacher sees.

    Label losses are means over the samples that have a label. If the student has a classifier, the label loss is
    ``loss/labels``, and teachers' class scores are compared with that classifier. Otherwise, with ``config.alpha``, it
    is ``loss/<teacher>/labels``, computed by the student's head for the teacher's class scores.

    Args:
        view: name of the view that the student sees.
        config: temperatures, labels, balance and dropping; by default none of them is used.
        peers: networks that train with the student, by name; see :mod:`radioplat.objectives.peers`.

    Attributes:
        step: the current global step; the MESA loss starts at ``config.mesa.start_step``.
    """

    def __init__(
        self,
        student: Student,
        teachers: list[ResolvedTeacher],
        view: str,
        config: DistillConfig | None = None,
        peers: Mapping[str, Peer] | None = None,
    ) -> None:
        super().__init__(student, view, teachers, nn.ModuleDict(dict(peers or {})))
        self.step = 0
        self.config = config = DistillConfig() if config is None else config
        wants_map = bool(config.mesa.weight) or any("spatial" in t.wanted for t in teachers)
        self.classifies = student.architecture.num_classes > 0
        self.label_weight = label_weight(config, teachers)
        wanted = {"summary", *(["spatial"] if wants_map else []), *(["logits"] if self.classifies else [])}
        self._wanted = frozenset(wanted)
        self._captures = sorted({bound.student_module for t in teachers for bound in t.bindings})
        deeper = {b.teacher_module for t in teachers if t.source is Source.deeper for b in t.bindings}
        self._captures = sorted({*self._captures, *deeper})
        self.criteria = nn.ModuleDict()
        for teacher in teachers:
            architecture = student.heads[teacher.name].architecture
            for term in teacher.terms:
                width = getattr(architecture, f"{term.kind}_dim")
                self.criteria[f"{teacher.name}/{term.name}"] = criterion(term, width, config)
            for bound in teacher.bindings:
                term = Term("module", bound.loss, bound.weight, bound.where)
                self.criteria[f"{teacher.name}/{bound.name}"] = criterion(term, 0, config)
        self._scale = config.loss_scale / (max(1, len(teachers)) if config.mean_over_teachers else 1)
        self.balance = TeacherBalance([t.name for t in teachers if t.terms], config.balance)

    def asks_average(self, step: int | None = None) -> bool:
        """Return True if MESA or a teacher with ``source: ema`` uses the student's moving average at ``step``."""
        mesa = self.config.mesa
        late = step is not None and step < mesa.start_step
        return bool(mesa.weight and not late) or any(t.source is Source.ema for t in self.teachers)

    def begin_step(self, context: StepContext) -> None:
        """Set the current step, and update the copy of the student's moving average if this step uses it."""
        self.step = context.step
        if self.average is not None and self.asks_average(self.step):
            self.average.update()

    def _mesa_view(self) -> str:
        """Return the name of the view on which MESA evaluates the average at this step; "" if MESA is not active."""
        mesa = self.config.mesa
        if not mesa.weight or self.step < mesa.start_step:
            return ""
        return AVERAGE if mesa.view is AverageView.shifted else self.view

    def losses(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return ``loss`` and its terms, as fp32 scalars by name; see the class."""
        images = batch.views[self.view]
        with captured(self.student.backbone.target, self._captures) as outputs:
            features = self.student(images, self._wanted)
        grid = images.shape[-2] // self.student.stride, images.shape[-1] // self.student.stride
        losses: dict[str, torch.Tensor] = {}
        parts: dict[str, list[_Part]] = {}
        listened = [teacher for teacher in self.teachers if teacher.name not in self.quarantined]
        inside = answers_inside(listened, batch, outputs, grid, self.peers, self.average, self._mesa_view())
        batch = with_answers(batch, listened, inside)
        active = [teacher for teacher in listened if teacher.terms]
        for teacher in active:
            parts[teacher.name] = self._parts(teacher, features, batch, losses)
        balance = self.balance.factors(list(parts))
        keeps = self._kept(active, parts, balance, batch)
        total = torch.zeros((), device=batch.weight.device)
        for i, teacher in enumerate(active):
            factor = batch.factors.get(teacher.name, 1.0) * teacher.loss_lambda * balance[teacher.name] * self._scale
            keep = 1.0 if keeps is None else keeps[i]
            total = total + factor * sum(part.mean(keep) for part in parts[teacher.name])
        for name, mine in parts.items():
            self.balance.add_loss(name, sum(part.mean() for part in mine), _weight_for(batch, name).sum())
        if self.classifies and self.label_weight:
            hard = label_loss(zero_unweighted(features.named["logits"].float(), batch.weight), batch.label)
            losses["loss/labels"] = weighted_mean(hard, batch.weight * (batch.label >= 0))
            total = total + weighted_mean(label_share(batch.label, self.label_weight) * hard, batch.weight)
        for teacher in listened:
            total = total + self._bound(teacher, outputs, grid, batch, losses)
        for teacher in listened:
            if teacher.name in inside.peers:
                total = total + self._peer_learns(teacher, inside.peers, features, batch, losses)
        if inside.average is not None:
            overlap = batch.inner_overlaps.get(inside.average_view)
            losses["loss/mesa"] = mesa_loss(features.spatial, inside.average, batch.weight, overlap)
            total = total + self.config.mesa.weight * losses["loss/mesa"]
        return {"loss": total, **losses}

    def _bound(
        self,
        teacher: ResolvedTeacher,
        outputs: dict[str, torch.Tensor],
        grid: tuple[int, int],
        batch: MicroBatch,
        losses: dict[str, torch.Tensor],
    ) -> torch.Tensor | float:
        """Return the weighted sum of one teacher's binding losses; add each to ``losses`` without its weight."""
        weight, factor = _weight_for(batch, teacher.name), batch.factors.get(teacher.name, 1.0)
        projections, total = self.student.heads[teacher.name].bindings, 0.0
        for bound in teacher.bindings:
            theirs = zero_unweighted(batch.targets[teacher.name].named[bound.key].float(), weight)
            mine, visible = as_features(outputs[bound.student_module], grid), None
            mine = (projections[bound.name](mine) if bound.name in projections else mine).float()
            if mine.ndim == 4:
                mine, theirs, visible = on_common_grid(mine, theirs, batch.overlaps.get(teacher.name))
            compare = self.criteria[f"{teacher.name}/{bound.name}"]
            value = factor * weighted_mean(*compare(mine, theirs, weight, visible))
            losses[f"loss/{teacher.name}/{bound.name}"] = value
            total = total + bound.weight * value
        return total

    def _parts(
        self, teacher: ResolvedTeacher, features: Features, batch: MicroBatch, losses: dict[str, torch.Tensor]
    ) -> list[_Part]:
        """Return the terms of one teacher; add the mean of each to ``losses`` for logging."""
        weight, factor = _weight_for(batch, teacher.name), batch.factors.get(teacher.name, 1.0)
        head = self.student.heads[teacher.name]
        mine = self._in_space_of(teacher, features)
        theirs = batch.targets[teacher.name].map(lambda t: zero_unweighted(t, weight))
        shared = self.classifies and self.config.label_form is LabelForm.alpha  # alpha scales all terms
        share = label_share(batch.label, self.config.alpha)
        parts = []
        for term in teacher.terms:
            compare = self.criteria[f"{teacher.name}/{term.name}"]
            *pair, visible = _pair(term.kind, mine, theirs, batch.overlaps.get(teacher.name))
            if compare.raw:
                pair[0] = head.raw(term.kind, pair[0])
            else:
                pair[1] = head.standardize(term.kind, pair[1])
            values, counts = compare(*pair, weight, visible)
            losses[f"loss/{teacher.name}/{term.name}"] = factor * weighted_mean(values, counts)
            if shared or (term.kind == "logits" and self.config.alpha):
                values = (1 - share) * values
            parts.append(_Part(term.weight, values, counts))
        if "logits" in teacher.wanted and self.config.alpha and not self.classifies:
            hard = label_loss(zero_unweighted(mine.named["logits"].float(), weight), batch.label)
            losses[f"loss/{teacher.name}/labels"] = factor * weighted_mean(hard, weight * (batch.label >= 0))
            parts.append(_Part(1.0, share * hard, weight))
        return parts

    def _in_space_of(self, teacher: ResolvedTeacher, features: Features) -> Features:
        """Return the student's features from the head for ``teacher``, normalized as the losses need them.

        If the student has a classifier, its logits replace those of the head.
        """
        mine = self.student.heads[teacher.name](features, raw=False)
        if self.classifies and "logits" in teacher.wanted:
            mine.named["logits"] = features.named["logits"]
        return mine

    def _peer_learns(
        self,
        teacher: ResolvedTeacher,
        peers: Mapping[str, Features],
        features: Features,
        batch: MicroBatch,
        losses: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """Return the loss of a peer's own weights (:mod:`radioplat.objectives.peers`); add each term to ``losses``."""
        weight, name = _weight_for(batch, teacher.name), teacher.name
        mine = self._in_space_of(teacher, features).map(torch.Tensor.detach)
        theirs = peers[name].map(lambda t: zero_unweighted(t, weight))
        share = label_share(batch.label, self.config.alpha)
        total = torch.zeros((), device=weight.device)
        for term in teacher.terms:
            compare = self.criteria[f"{name}/{term.name}"]
            if term.kind == "logits":
                others = [mine, *(answer.map(torch.Tensor.detach) for other, answer in peers.items() if other != name)]
                heard = [compare(theirs.named["logits"], o.named["logits"].float(), weight) for o in others]
                values, counts = torch.stack([values for values, _ in heard]).mean(0), heard[0][1]
            else:
                a, b, visible = _pair(term.kind, mine, theirs, batch.overlaps.get(name))
                values, counts = compare(b, a, weight, visible)
            losses[f"loss/{name}/peer_{term.name}"] = weighted_mean(values, counts)
            values = (1 - share) * values if term.kind == "logits" else values
            total = total + term.weight * weighted_mean(values, counts)
        hard = label_loss(theirs.named["logits"], batch.label)
        losses[f"loss/{name}/peer_labels"] = weighted_mean(hard, weight * (batch.label >= 0))
        return total + weighted_mean(share * hard, weight)

    def _kept(
        self,
        active: list[ResolvedTeacher],
        parts: dict[str, list[_Part]],
        balance: dict[str, torch.Tensor | float],
        batch: MicroBatch,
    ) -> torch.Tensor | None:
        """Return 1 where a teacher's loss is used for a sample, else 0: float ``[teachers, B]``; None: all are used."""
        if not self.config.teacher_drop_prob or not active:
            return None
        rows = []
        for teacher in active:
            each = sum(part.scale * part.values.detach() for part in parts[teacher.name])
            each = teacher.loss_lambda * balance[teacher.name] * each
            rows.append(torch.where(_weight_for(batch, teacher.name) > 0, each, -torch.inf))
        return teacher_mask(torch.stack(rows), self.config.teacher_drop_prob)


class ClassifyObjective(Objective):
    """Train a backbone on labels: cross-entropy and accuracy over the samples that have a label."""

    def losses(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return ``loss`` and ``accuracy``, fp32 scalars."""
        logits = self.student(batch.views[self.view], frozenset({"summary", "logits"})).named["logits"].float()
        weight = batch.weight * (batch.label >= 0)
        label = batch.label.clamp(min=0)
        loss = masked_mean(F.cross_entropy(logits, label, reduction="none"), weight)
        accuracy = masked_mean((logits.argmax(-1) == label).float(), weight)
        return {"loss": loss, "accuracy": accuracy.detach()}


def _weight_for(batch: MicroBatch, teacher: str) -> torch.Tensor:
    """Return the samples' weights ``[B]`` for ``teacher``: zeros if it did not compute this micro-batch (factor 0)."""
    return batch.weight if batch.factors.get(teacher, 1.0) else torch.zeros_like(batch.weight)


def _pair(
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
