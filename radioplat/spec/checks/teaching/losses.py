"""Checks of the distillation losses and of the weights of teachers."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.labels import label_weight
from radioplat.spec.resolved.losses import LOSSES, definition_of
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.resolved.terms import Term
from radioplat.spec.schema.distill import Balance, KLForm, LabelForm, LossType, Source, TeacherConfig
from radioplat.spec.schema.root import Spec

_NAMES = {"logits": "class scores", "summary": "summaries", "spatial": "feature maps"}


def loss_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of the losses of a distillation."""
    teachers = resolve_teachers(spec)
    for config, teacher in zip(spec.distill.teacher, teachers, strict=True):
        for term in teacher.terms:
            yield from _term(term, spec.dataset.batch_size)
        yield from _names(teacher)
        yield from _of_maps(config, teacher)
    yield from _class_scores(spec, teachers)
    yield from _balance(spec)


def _term(term: Term, batch_size: int) -> Iterator[Problem]:
    loss, known = term.loss.value, definition_of(term.loss)
    if term.kind not in known.fits:
        fitting = ", ".join(other.name.value for other in LOSSES.values() if term.kind in other.fits)
        message = f"loss {loss} does not compare {_NAMES[term.kind]}"
        yield Problem(message, term.field, f"For {_NAMES[term.kind]} take {fitting}.")
    if 1 <= batch_size < known.least_images:
        message = f"loss {loss} compares images of a micro-batch, which has {batch_size}"
        yield Problem(message, "dataset.batch_size", f"Take at least {known.least_images}.")
    if known.most_images is not None and batch_size > known.most_images:
        message = f"loss {loss} compares all {known.groups} of a micro-batch of {batch_size}: they do not fit in memory"
        yield Problem(message, "dataset.batch_size", f"Take at most {known.most_images}; the global batch may stay.")


def _names(teacher: ResolvedTeacher) -> Iterator[Problem]:
    names: set[str] = set()
    for term in teacher.terms:
        if term.name in names:
            yield Problem(f"{term.loss.value} of {term.kind} is given twice", term.where, "Give one, with a weight.")
        names.add(term.name)


def _of_maps(config: TeacherConfig, teacher: ResolvedTeacher) -> Iterator[Problem]:
    """Check fields that only a loss between feature maps reads."""
    where, maps = teacher.where, [term for term in teacher.terms if term.kind == "spatial"]
    hint = "Take mode spatial or combo, or leave this out."
    if config.spatial_loss_type is not None and all(term.extra for term in maps):
        yield Problem("this teacher's map is not distilled", f"{where}.spatial_loss_type", hint)
    weight, gamma, most = (
        config.spatial_focal_weight,
        config.spatial_focal_gamma,
        config.spatial_focal_max_weight,
    )
    if weight and not any(definition_of(term.loss).by_position for term in maps):
        message = "no loss of this teacher compares maps position by position"
        yield Problem(message, f"{where}.spatial_focal_weight", hint)
    if not weight and (gamma, most) != (1.0, 4.0):
        message = "spatial_focal_gamma and spatial_focal_max_weight have no effect without it"
        yield Problem(message, f"{where}.spatial_focal_weight", "Set it above 0, or leave the other two out.")


def _class_scores(spec: Spec, teachers: list[ResolvedTeacher]) -> Iterator[Problem]:
    distill, terms = spec.distill, [term for teacher in teachers for term in teacher.terms]
    kl = any(term.loss is LossType.KL for term in terms)
    if distill.temperature != 1 and (distill.kl_form is KLForm.tao or not kl):
        message = "no loss has a temperature: " + ("it is 1 in TAO's KL" if kl else "no teacher has loss KL")
        hint = "Set distill.kl_form: hinton, or leave this at 1." if kl else "Leave it at 1."
        yield Problem(message, "distill.temperature", hint)
    if distill.alpha and not (spec.dataset.num_classes > 0 or any(term.kind == "logits" for term in terms)):
        message = "labels need a classifier: the student has none, and no teacher's class scores are distilled"
        hint = "Give dataset.num_classes, or a teacher mode logits; or leave this at 0."
        yield Problem(message, "distill.alpha", hint)
    if distill.label_form is LabelForm.tao:
        yield from _tao_labels(spec, teachers)


def _tao_labels(spec: Spec, teachers: list[ResolvedTeacher]) -> Iterator[Problem]:
    """Check TAO's weight of labels, 1 - the sum of ``loss_lambda``."""
    where = "distill.label_form"
    if spec.dataset.num_classes < 1:
        yield Problem("labels need a classifier, and dataset.num_classes is 0", where, "Give it, or take alpha.")
    if spec.distill.alpha:
        message = f"with {where} tao the weight of labels is 1 - loss_lambda, not alpha"
        yield Problem(message, "distill.alpha", "Leave it at 0, or take label_form alpha.")
    if any(teacher.source is Source.peer for teacher in teachers):
        yield Problem("a peer needs distill.alpha", where, "Take alpha.")
    if not 0 < (left := label_weight(spec.distill, teachers)) <= 1:
        message = f"the weight of labels is 1 - the sum of loss_lambda, which is {left:g}"
        yield Problem(message, "distill.loss_lambda", "Lower it below 1 in all, or take label_form alpha.")


def _balance(spec: Spec) -> Iterator[Problem]:
    # Deeper layers of the student itself have no such weight.
    distill = spec.distill
    alone = sum(teacher.source is not Source.deeper for teacher in distill.teacher) == 1
    if distill.balance is Balance.adaloss and alone:
        yield Problem("it needs more than one teacher", "distill.balance", "Take fixed.")
    if distill.teacher_drop_prob and alone:
        yield Problem("a single teacher is never dropped", "distill.teacher_drop_prob", "Leave it at 0.")
