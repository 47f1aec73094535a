"""The training modules of distillation and classification: student, heads and losses as one module for DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.losses.base.grid import on_common_grid
from radioplat.losses.base.reduce import masked_mean, weighted_mean, zero_unweighted
from radioplat.losses.registry import criterion
from radioplat.losses.terms.hard_labels import label_loss, label_share
from radioplat.losses.weighting.balance import TeacherBalance
from radioplat.losses.weighting.teacher_dropping import teacher_mask
from radioplat.models.capture import as_features, captured
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.objectives.compiled import compiled
from radioplat.objectives.inner_teachers import answers_inside, with_answers
from radioplat.objectives.mesa import mesa_loss
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import Objective, StepContext
from radioplat.objectives.peers import Peer
from radioplat.objectives.teacher_terms import Part, TeacherTerms, pair, scaled, total_of
from radioplat.spec.resolved.labels import label_weight
from radioplat.spec.resolved.teacher import AVERAGE, ResolvedTeacher
from radioplat.spec.resolved.terms import Term
from radioplat.spec.schema.distill import AverageView, DistillConfig, LabelForm, Source


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
        self._terms = {
            t.name: TeacherTerms(
                t,
                student,
                self.criteria,
                self.classifies,
                learns_labels="logits" in t.wanted and bool(config.alpha) and not self.classifies,
            )
            for t in teachers
        }
        self._mesa_loss = mesa_loss
        self._scale = config.loss_scale / (max(1, len(teachers)) if config.mean_over_teachers else 1)
        self.balance = TeacherBalance([t.name for t in teachers if t.terms], config.balance)

    def compile_losses(self, backend: str = "inductor") -> None:
        """Compile each teacher's head and terms to a graph, and the MESA loss to another."""
        for terms in self._terms.values():
            terms.compile(backend)
        self._mesa_loss = compiled(mesa_loss, backend)

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
        parts: dict[str, list[Part]] = {}
        listened = [teacher for teacher in self.teachers if teacher.name not in self.quarantined]
        inside = answers_inside(listened, batch, outputs, grid, self.peers, self.average, self._mesa_view())
        batch = with_answers(batch, listened, inside)
        active = [teacher for teacher in listened if teacher.terms]
        for teacher in active:
            parts[teacher.name] = self._parts(teacher, features, batch, losses)
        balance = self.balance.factors(list(parts))
        keeps = self._kept(active, parts, balance, batch)
        sums = []
        for i, teacher in enumerate(active):
            factor = batch.factors.get(teacher.name, 1.0) * teacher.loss_lambda * balance[teacher.name] * self._scale
            keep = None if keeps is None else keeps[i]
            mine = total_of([part.mean(keep) for part in parts[teacher.name]], like=batch.weight)
            sums.append(scaled(factor, mine))
            if self.observer is not None:
                self._show_samples(teacher, parts[teacher.name], factor, keep)
        total = total_of(sums, like=batch.weight)
        for name, own in parts.items() if self.balance.counts else ():
            mean = total_of([part.mean() for part in own], like=batch.weight)
            self.balance.add_loss(name, mean, _weight_for(batch, name).sum())
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
            losses["loss/mesa"] = self._mesa_loss(features.spatial, inside.average, batch.weight, overlap)
            total = total + self.config.mesa.weight * losses["loss/mesa"]
        return {"loss": total, **losses}

    def _show_samples(
        self,
        teacher: ResolvedTeacher,
        parts: list[Part],
        factor: float | torch.Tensor,
        keep: torch.Tensor | None,
    ) -> None:
        """Call the observer with each sample's part of the loss by each term of a teacher."""
        assert self.observer is not None
        names = [*(term.name for term in teacher.terms), "labels"]
        for name, part in zip(names, parts, strict=False):  # the labels' part is there or not
            kept = part.values if keep is None else part.values * keep
            share = part.weight / part.weight.sum().clamp(min=1e-6)
            self.observer(f"{teacher.name}/{name}", factor * part.scale * kept * share)

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
    ) -> list[Part]:
        """Return the terms of one teacher; add the mean of each to ``losses`` for logging."""
        weight, factor = _weight_for(batch, teacher.name), batch.factors.get(teacher.name, 1.0)
        terms, overlap = self._terms[teacher.name], batch.overlaps.get(teacher.name)
        compared, hard = terms(features, batch.targets[teacher.name], weight, batch.label, overlap)
        alpha = self.config.alpha
        shared = self.classifies and self.config.label_form is LabelForm.alpha  # alpha scales all terms
        share = label_share(batch.label, alpha) if shared or alpha else None
        parts = []
        for term, one in zip(teacher.terms, compared, strict=True):
            terms.criterion(term.name).count(one.statistics)
            losses[f"loss/{teacher.name}/{term.name}"] = scaled(factor, one.mean)
            if share is not None and (shared or term.kind == "logits"):
                parts.append(Part(term.weight, (1 - share) * one.values, one.counts))
            else:
                parts.append(Part(term.weight, one.values, one.counts, one.mean))
        if hard is not None:
            losses[f"loss/{teacher.name}/labels"] = scaled(factor, weighted_mean(hard, weight * (batch.label >= 0)))
            parts.append(Part(1.0, share * hard, weight))
        return parts

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
        mine = self._terms[name].in_space(features).map(torch.Tensor.detach)
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
                a, b, visible = pair(term.kind, mine, theirs, batch.overlaps.get(name))
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
        parts: dict[str, list[Part]],
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

    def __init__(self, student: Student, view: str) -> None:
        super().__init__(student, view)
        self._judge = _cross_entropy_and_accuracy

    def compile_losses(self, backend: str = "inductor") -> None:
        """Compile cross-entropy and accuracy to one graph."""
        self._judge = compiled(_cross_entropy_and_accuracy, backend)

    def losses(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return ``loss`` and ``accuracy``, fp32 scalars."""
        logits = self.student(batch.views[self.view], frozenset({"summary", "logits"})).named["logits"].float()
        loss, accuracy = self._judge(logits, batch.label, batch.weight)
        if self.observer is not None:
            weight = batch.weight * (batch.label >= 0)
            each = F.cross_entropy(logits, batch.label.clamp(min=0), reduction="none") * weight
            self.observer("labels", each / weight.sum().clamp(min=1e-6))
        return {"loss": loss, "accuracy": accuracy.detach()}


def _cross_entropy_and_accuracy(
    logits: torch.Tensor, label: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as means over the samples with a label: scalars, of ``logits`` ``[B, C]``."""
    weight, label = weight * (label >= 0), label.clamp(min=0)
    loss = masked_mean(F.cross_entropy(logits, label, reduction="none"), weight)
    return loss, masked_mean((logits.argmax(-1) == label).float(), weight)


def _weight_for(batch: MicroBatch, teacher: str) -> torch.Tensor:
    """Return the samples' weights ``[B]`` for ``teacher``: zeros if it did not compute this micro-batch (factor 0)."""
    return batch.weight if batch.factors.get(teacher, 1.0) else torch.zeros_like(batch.weight)
