"""Feature widths and maps of teachers inside the objective (the student's EMA, its layers, peers), without weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from radioplat.errors import Problem, SpecError
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.capture import as_features, captured, require_modules
from radioplat.models.on_meta import on_meta
from radioplat.models.probe import probe
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import build_backbone
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import MODULE
from radioplat.spec.schema.distill import Source
from radioplat.spec.schema.root import Spec
from radioplat.teachers.adapters.adapter import NativeInput
from radioplat.teachers.base.info import TeacherInfo

_PEERS = ("timm", "clip", "dino", "radio", "radioplat")  # adapters whose models can be trained


def describe_inside(
    teachers: Sequence[ResolvedTeacher], architecture: StudentArchitecture, size: int
) -> dict[str, TeacherInfo]:
    """Return widths and maps of the teachers that are the student itself, by name.

    Args:
        teachers: all of the run, in the spec's order.
        architecture: of the student, without heads.
        size: side in pixels of the largest view that the student sees.

    Raises:
        SpecError: one problem for each binding to a module that the student lacks or does not run.
    """
    own = [t for t in teachers if t.source in (Source.ema, Source.deeper)]
    architecture = replace(architecture, num_class_tokens=max(architecture.num_class_tokens, len(teachers)))
    with on_meta():
        backbone = build_backbone(architecture)
    require_modules(
        backbone.target, {f"{b.where}.teacher_module_name": b.teacher_module for t in own for b in t.bindings}
    )
    problems = []
    with captured(backbone.target, sorted({b.teacher_module for t in own for b in t.bindings})) as outputs:
        features = probe(backbone, size, frozenset({"summary", "spatial"}), "dataset.img_size")
    assert features.spatial is not None and features.summary is not None  # both were requested
    rows, columns, width = features.spatial.shape[1:]
    summary = features.summary.shape[-1]
    if isinstance(backbone, RadioViT):
        summary = backbone.token_dim * (len(_taught_slots(teachers)) or architecture.num_class_tokens)
    parameters = sum(p.numel() for p in backbone.parameters())
    infos = {}
    for teacher in own:
        named = {}
        for bound in teacher.bindings:
            if bound.teacher_module not in outputs:
                message = f"the student does not run its module {bound.teacher_module!r}"
                problems.append(Problem(message, f"{bound.where}.teacher_module_name"))
                continue
            named[MODULE + bound.teacher_module] = tuple(
                as_features(outputs[bound.teacher_module], (rows, columns)).shape[1:]
            )
        infos[teacher.name] = TeacherInfo(
            teacher.name,
            summary,
            width,
            0,
            backbone.stride,
            (rows, columns),
            parameters if teacher.source is Source.ema else 0,
            teacher.source.value,
            NativeInput(architecture.mean, architecture.std, None, "as the student's"),
            named,
        )
    if problems:
        raise SpecError(*problems)
    return infos


def _taught_slots(teachers: Sequence[ResolvedTeacher]) -> set[int]:
    """Return the class tokens of the student's summary, see ``StudentArchitecture.summary_slots``."""
    return {
        i if t.token_slot is None else t.token_slot for i, t in enumerate(teachers) if t.wanted & {"summary", "logits"}
    }


def peer_problems(
    spec: Spec, teachers: Sequence[ResolvedTeacher], infos: Mapping[str, TeacherInfo]
) -> Iterator[Problem]:
    """Yield peers that cannot be trained, or whose class scores differ in number."""
    peers = [t for t in teachers if t.source is Source.peer and t.name in infos]
    for peer in peers:
        kind = infos[peer.name].adapter
        if kind not in _PEERS:
            hint = "Take a timm model, or a checkpoint of radioplat train."
            message = f"a model of kind {kind} cannot be trained, as a peer is"
            yield Problem(message, f"{peer.where}.model.backbone.type", hint)
        if infos[peer.name].logits_dim != infos[peers[0].name].logits_dim:
            message = f"{infos[peer.name].logits_dim} classes, and the peer {peers[0].name} has "
            message += f"{infos[peers[0].name].logits_dim}: they learn from each other's class scores"
            yield Problem(message, f"{peer.where}.model.backbone.output_dim", "Give all peers the same classes.")
