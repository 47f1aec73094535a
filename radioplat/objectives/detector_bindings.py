"""Distillation between detectors: compare outputs of named modules; maps by position, queries after matching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from radioplat.errors import Problem, SpecError
from radioplat.losses.base.criterion import Pointwise
from radioplat.losses.base.grid import Overlap, on_common_grid
from radioplat.losses.base.reduce import to_grid, weighted_mean, zero_unweighted
from radioplat.losses.registry import criterion
from radioplat.losses.terms.logits import kl_sigmoid
from radioplat.losses.terms.queries import (
    TAPS,
    Answers,
    best_class_score,
    criterion_inputs,
    match_queries,
    select_queries,
)
from radioplat.losses.weighting.iou_mask import object_mask, tao_object_mask
from radioplat.models.capture import captured, require_modules
from radioplat.models.detectors.base import Detector
from radioplat.spec.resolved.losses import Binds, definition_of
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import MODULE, PROPOSAL_MODULES, QUERY_MODULES, Bound, Term
from radioplat.spec.schema.distill import DistillConfig, LossType
from radioplat.teachers.base.info import TeacherInfo

Widths = dict[str, tuple[int, int]]  # widths of the student's and the teacher's features, by "<teacher>/<binding>"


class DetectorBindings(nn.Module):
    """Compute the losses of one teacher's bindings.

    Maps are resized to the coarser of the two grids. If the widths differ, a linear projection maps the student's
    features to the teacher's width. Queries are matched one to one; a pair of boxes or query features is weighted by
    the teacher's best class score. ``IOU`` is L2 weighted by
    :func:`radioplat.losses.weighting.iou_mask.object_mask`.

    With ``distill.binding_form: tao`` the i-th queries are compared, with equal weights, class scores by the KL of
    softmaxes. ``IOU`` is the mean over all positions of L2 between maps that are multiplied by
    :func:`radioplat.losses.weighting.iou_mask.tao_object_mask`.

    Args:
        widths: see :func:`binding_widths`.
    """

    def __init__(self, teacher: ResolvedTeacher, widths: Widths, config: DistillConfig) -> None:
        super().__init__()
        self.teacher = teacher
        self.criteria, self.projections = nn.ModuleDict(), nn.ModuleDict()
        for bound in teacher.bindings:
            mine, theirs = widths[f"{teacher.name}/{bound.name}"]
            term = Term("module", bound.loss, bound.weight, bound.where)
            scores = bound.loss is LossType.KL and bound.teacher_module == "pred_logits" and not bound.as_tao
            self.criteria[bound.name] = Pointwise(kl_sigmoid) if scores else criterion(term, theirs, config)
            if mine != theirs:
                self.projections[bound.name] = nn.Linear(mine, theirs)

    def forward(
        self,
        mine: Mapping[str, torch.Tensor],
        theirs: Mapping[str, torch.Tensor],
        weight: torch.Tensor,
        truth: Sequence[torch.Tensor],
        size: tuple[int, int],
        overlap: Overlap | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return the loss of each binding, a scalar, not multiplied by the binding's weight.

        Args:
            mine: outputs of the student's modules by name; maps are ``[B, C, h, w]``.
            theirs: outputs of the teacher's modules by :attr:`Bound.key`; maps are ``[B, h, w, C]``.
            weight: of the samples, ``[B]``.
            truth: boxes of each image, ``[N, 4]``, see :func:`object_mask`.
            size: height and width of the images, pixels.
        """
        theirs = {name.removeprefix(MODULE): zero_unweighted(value.float(), weight) for name, value in theirs.items()}
        values = {}
        for bound in self.teacher.bindings:
            pair = self._queries if bound.teacher_module in QUERY_MODULES else self._maps
            a, b, visible = pair(bound, mine, theirs, (truth, size), overlap)
            values[bound.name] = weighted_mean(*self.criteria[bound.name](a, b, weight, visible))
        return values

    def _maps(self, bound: Bound, mine, theirs, objects, overlap):
        student, teacher = mine[bound.student_module].permute(0, 2, 3, 1).float(), theirs[bound.teacher_module]
        if bound.name in self.projections:
            student = self.projections[bound.name](student)
        student, teacher, visible = on_common_grid(student, teacher, overlap)
        masked = definition_of(bound.loss).object_mask
        if masked and bound.as_tao:
            queries, logits, boxes = (theirs[name] for name in PROPOSAL_MODULES)
            mask = tao_object_mask(logits, boxes, queries, teacher, *objects)[..., None]
            student, teacher = student * mask, teacher * mask
        elif masked:
            at = (theirs[name] for name in ("pred_logits", "pred_boxes", "queries", "memory.0"))
            logits, boxes, queries, memory = at
            mask = object_mask(logits, boxes, queries, memory, objects[0])
            mask = to_grid(mask[..., None], teacher.shape[1:3])[..., 0]
            visible = mask if visible is None else visible * mask
        return student, teacher, visible

    def _queries(self, bound: Bound, mine, theirs, objects, overlap):
        if bound.as_tao:
            student = mine[bound.student_module].float()[:, :, None]
            if bound.name in self.projections:
                student = self.projections[bound.name](student)
            return student, theirs[bound.teacher_module][:, :, None], None
        own, other = (Answers(of["pred_logits"], of["pred_boxes"]) for of in (mine, theirs))
        pairs = match_queries(own, other)
        if bound.teacher_module in TAPS:
            return criterion_inputs(bound.teacher_module, own, other, pairs)
        student = select_queries(mine[bound.student_module].float(), pairs.mine)
        if bound.name in self.projections:
            student = self.projections[bound.name](student)
        target = select_queries(theirs[bound.teacher_module], pairs.theirs)
        return student, target, best_class_score(select_queries(other.logits, pairs.theirs))


def student_modules(teachers: Sequence[ResolvedTeacher]) -> list[str]:
    """Return the names of the student's modules whose outputs the bindings compare."""
    names = {bound.student_module for teacher in teachers for bound in teacher.bindings}
    return sorted(names | set(QUERY_MODULES) if names & set(QUERY_MODULES) else names)


def binding_widths(
    detector: Detector, teachers: Sequence[ResolvedTeacher], infos: Mapping[str, TeacherInfo], size: int
) -> Widths:
    """Return the widths of the student's and the teacher's features in each binding, from one forward on a zero image.

    Raises:
        SpecError: one problem for each binding to a module that is not there, or whose outputs cannot be compared.
    """
    bindings = [bound for teacher in teachers for bound in teacher.bindings]
    require_modules(detector, {f"{bound.where}.student_module_name": bound.student_module for bound in bindings})
    problems: list[Problem] = []
    training = detector.training
    with captured(detector, student_modules(teachers)) as outputs, torch.no_grad():
        detector.eval().outputs(torch.zeros(1, 3, size, size, dtype=torch.uint8))
    detector.train(training)
    widths: Widths = {}
    for teacher in teachers:
        for bound in teacher.bindings:
            mine, named = outputs.get(bound.student_module), infos[teacher.name].named
            theirs = named[bound.key]
            if why := _unlike(bound, mine, theirs, outputs, named):
                problems.append(Problem(why, bound.where, "Name maps on both sides, or the same of " + _LISTED))
            elif mine is not None:
                width = mine.shape[1] if mine.ndim == 4 else mine.shape[-1]
                widths[f"{teacher.name}/{bound.name}"] = (width, theirs[-1])
    if problems:
        raise SpecError(*problems)
    return widths


_LISTED = f"{', '.join(QUERY_MODULES)}."


def _unlike(
    bound: Bound,
    mine: torch.Tensor | None,
    theirs: tuple[int, ...],
    outputs: Mapping[str, torch.Tensor],
    named: Mapping[str, tuple[int, ...]],
) -> str:
    """Return the reason why the two outputs cannot be compared; empty if they can."""
    if mine is None:
        return f"the student does not run its module {bound.student_module!r}"
    if bound.student_module in QUERY_MODULES or bound.teacher_module in QUERY_MODULES:
        if bound.student_module != bound.teacher_module:
            return f"{bound.student_module} of the student against {bound.teacher_module} of the teacher"
        counts = mine.shape[1], theirs[0]
        if bound.as_tao and counts[0] != counts[1]:
            return f"{counts[0]} queries of the student against {counts[1]} of the teacher, which TAO compares in order"
        if bound.as_tao and bound.student_module != "pred_logits":
            return ""
        if outputs["pred_logits"].shape[-1] != named[f"{MODULE}pred_logits"][-1]:
            return f"{outputs['pred_logits'].shape[-1]} classes against {named[f'{MODULE}pred_logits'][-1]}"
        any_modules = definition_of(bound.loss).binds is Binds.any_modules
        return "" if any_modules else f"{bound.loss.value} looks at maps"
    if mine.ndim != 4 or len(theirs) != 3:
        return "a map [B, C, h, w] is needed on both sides"
    if absent := [name for name in bound.context_modules if MODULE + name not in named]:
        return f"{bound.loss.value} as in TAO needs {absent[0]} of the teacher, which only an RT-DETR has"
    against = (bound.teacher_module, "proposal_queries") if bound.as_tao else ("memory.0", "queries")
    wide = [named[MODULE + name][-1] for name in against if bound.context_modules]
    return f"the teacher's queries and its map have unlike widths {wide}" if len(set(wide)) > 1 else ""
