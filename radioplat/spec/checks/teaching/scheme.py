"""Checks of the sources of teachers: ``distill.scheme``, ``source``, ``ensemble`` and ``distill.mesa``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.losses import definition_of
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.schema.distill import MesaConfig, Scheme, Source, TargetNormType, TeacherConfig
from radioplat.spec.schema.root import Spec

_ALLOWED = {
    Scheme.offline: (Source.weights,),
    Scheme.reverse: (Source.weights,),
    Scheme.self: (Source.weights, Source.ema, Source.deeper),
    Scheme.online: (Source.weights, Source.peer),
}
_NEEDED = {Scheme.self: (Source.ema, Source.deeper), Scheme.online: (Source.peer,)}
_HOME = {Source.ema: Scheme.self, Source.deeper: Scheme.self, Source.peer: Scheme.online}

# Fields of a teacher that need frozen weights, a separate backbone, or a loss of its own.
_OF_WEIGHTS = ("ensemble", "adaptor", "upsample_factor", "upsampler_checkpoint", "mosaic", "spatial_norm_type")
_OF_BACKBONES = (
    "model",
    "pretrained_teacher_model_path",
    "input_size",
    "patch_size",
    "match_student_resolution",
    "stochastic_resolutions",
    "norm_mean",
    "norm_std",
)
_OF_LOSSES = (
    "loss_type",
    "loss_lambda",
    "mode",
    "summary_loss_weight",
    "fd_loss_weight",
    "summary_loss_type",
    "spatial_loss_type",
    "spatial_focal_weight",
    "extra_losses",
    "summary_token_idx",
    "use_head",
    "spatial_mlp_version",
    "spatial_num_inner",
    "fd_upsample_factor",
)
_REASON = {
    Source.ema: "it is the student's own average",
    Source.deeper: "it is the student itself",
    Source.peer: "it trains with the student",
}


def scheme_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of the sources of the teachers."""
    scheme, teachers = spec.distill.scheme, resolve_teachers(spec)
    needed = _NEEDED.get(scheme, ())
    if needed and not any(teacher.source in needed for teacher in teachers):
        kinds = " or ".join(source.value for source in needed)
        hint = f"Give one source: {kinds}, or take scheme: offline."
        yield Problem(f"scheme {scheme.value} needs a teacher whose source is {kinds}", "distill.scheme", hint)
    for config, teacher in zip(spec.distill.teacher, teachers, strict=True):
        if teacher.source not in _ALLOWED[scheme]:
            home = _HOME[teacher.source].value
            message = f"a teacher of source {teacher.source.value} belongs to scheme {home}, not to {scheme.value}"
            yield Problem(message, f"{teacher.where}.source", f"Set distill.scheme: {home}.")
        yield from _ensemble(config, teacher)
        if teacher.inside:
            yield from _foreign_fields(spec, config, teacher)
        if config.view is not TeacherConfig().view and teacher.source is not Source.ema:
            hint = "Leave it out; views of other teachers are shifted by dataset.train_dataset.shift_equivariance."
            yield Problem("only source ema has this field", f"{teacher.where}.view", hint)
        if teacher.source is Source.ema:
            yield from _average(spec, teacher)
        elif teacher.source is Source.deeper:
            yield from _deeper(teacher)
        elif teacher.source is Source.peer:
            yield from _peer(spec, teacher)
    yield from _mesa(spec)
    norm = spec.distill.target_norm.type
    if teachers and norm is not TargetNormType.none and all(teacher.inside for teacher in teachers):
        message = "features of teachers that train are not transformed, and there are no others"
        yield Problem(message, "distill.target_norm.type", "Take none.")
    if spec.distill.mesa.weight or any(teacher.source is Source.ema for teacher in teachers):
        yield from _moving_average(spec)


def _ensemble(config: TeacherConfig, teacher: ResolvedTeacher) -> Iterator[Problem]:
    where = f"{teacher.where}.ensemble"
    if not config.ensemble:
        return
    if len(config.ensemble) < 2:
        hint = "Give pretrained_teacher_model_path for a single one."
        yield Problem("an ensemble has at least two members", where, hint)
    if config.pretrained_teacher_model_path or config.model.backbone.pretrained_backbone_path:
        yield Problem("the weights are named twice", where, "List all of them here, and give no other path.")
    if config.adaptor is not None:
        hint = "Leave out one of adaptor and ensemble."
        yield Problem("an upsampler belongs to one set of weights", where, hint)


def _foreign_fields(spec: Spec, config: TeacherConfig, teacher: ResolvedTeacher) -> Iterator[Problem]:
    """Check fields without effect for a teacher that is computed with the student."""
    names = [*_OF_WEIGHTS]
    if teacher.source is not Source.peer:
        names += _OF_BACKBONES
    if teacher.source is Source.deeper:
        names += _OF_LOSSES
    message = f"a teacher of source {teacher.source.value} has no such field: {_REASON[teacher.source]}"
    yield from unused_fields(config, names, teacher.where, message, "Leave it out.")
    if teacher.name in spec.teachers:
        message = f"{_REASON[teacher.source]}, inside the workers: it is no service"
        yield Problem(message, f"teachers.{teacher.name}", "Remove this section.")


def _average(spec: Spec, teacher: ResolvedTeacher) -> Iterator[Problem]:
    for term in teacher.terms:
        if term.kind == "logits":
            hint = "Take mode summary, spatial or combo."
            yield Problem("the student's moving average has no class scores", term.where, hint)


def _deeper(teacher: ResolvedTeacher) -> Iterator[Problem]:
    if not teacher.bindings:
        hint = f"Add distill.bindings: [{{teacher: {teacher.name}, teacher_module_name: a deeper module of the "
        hint += "student, student_module_name: ..., criterion: MSE}]."
        yield Problem("source deeper needs bindings, and none names this teacher", f"{teacher.where}.source", hint)
    for bound in teacher.bindings:
        if bound.teacher_module == bound.student_module:
            hint = "Name a deeper module of the student."
            yield Problem("the student's module is the same", f"{bound.where}.teacher_module_name", hint)


def _peer(spec: Spec, teacher: ResolvedTeacher) -> Iterator[Problem]:
    """Check that a peer learns from labels too; otherwise student and peer could agree on any output."""
    where, distill = teacher.where, spec.distill
    if "logits" not in {term.kind for term in teacher.terms}:
        hint = "Take mode logits; give losses on features in extra_losses."
        yield Problem("a peer needs class scores, which its mode does not distill", f"{where}.mode", hint)
    elif not distill.alpha > 0:
        message = f"the peer {teacher.name} needs labels, not the student's output alone"
        yield Problem(message, "distill.alpha", "Set it above 0.")
    for term in teacher.terms:
        # A loss of bindings only is reported elsewhere as one that fits no teacher.
        if definition_of(term.loss).keeps_statistics and definition_of(term.loss).fits:
            message = f"loss {term.loss.value} needs constant statistics of a teacher, and a peer is trained"
            yield Problem(message, term.field, "Take another loss.")
    named = {name for partition in distill.partitions for name in partition.teachers}
    for i, partition in enumerate(distill.partitions):
        if teacher.name in named and teacher.name not in partition.teachers:
            hint = "Name it in every partition, or in none."
            message = f"the peer {teacher.name} trains on the same images as the student"
            yield Problem(message, f"distill.partitions[{i}].teachers", hint)
    for i, stage in enumerate(distill.stages):
        if stage.teachers and teacher.name not in stage.teachers:
            message = f"the peer {teacher.name} trains in every step, as the student does"
            yield Problem(message, f"distill.stages[{i}].teachers", "Name it here too.")


def _mesa(spec: Spec) -> Iterator[Problem]:
    mesa, where = spec.distill.mesa, "distill.mesa"
    if not mesa.weight and mesa != MesaConfig():
        yield Problem("MESA has no effect with weight 0", f"{where}.weight", f"Set it above 0, or leave {where} out.")


def _moving_average(spec: Spec) -> Iterator[Problem]:
    """Check that the student has a moving average, and trains."""
    if not spec.train.enable_ema:
        message = "the student's moving average is a teacher, and none is computed"
        yield Problem(message, "train.enable_ema", "Set it to true; train.ema_decay is its decay.")
    if spec.model.backbone.freeze_backbone:
        message = "the student's moving average is a teacher, and equals the student if the backbone is frozen"
        yield Problem(message, "model.backbone.freeze_backbone", "Leave it at false.")
