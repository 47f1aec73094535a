"""Checks of the student's structure: attention windows, heads, and fields of the backbone."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.root import Spec

HEAD_VERSIONS = ("v2", "attn")
_OF_HEADS = ("spatial_mlp_version", "spatial_num_inner", "fd_upsample_factor")
_STUDENT_ONLY = ("freeze_norm", "drop_path", "spectral_reparam", "cpe", "cpe_crop", "position_dropout")


def student_structure(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``distill.vitdet``, the heads' fields, and those of the student's backbone."""
    backbone, train, vitdet = spec.model.backbone, spec.train, spec.distill.vitdet
    if vitdet.num_global is not None and vitdet.num_windowed is not None:
        hint = "Leave one of them unset."
        yield Problem("num_global determines it already", "distill.vitdet.num_windowed", hint)
    for i, teacher in enumerate(spec.distill.teacher):
        if teacher.spatial_mlp_version not in HEAD_VERSIONS:
            message, hint = f"no head is called {teacher.spatial_mlp_version!r}", f"Valid: {', '.join(HEAD_VERSIONS)}."
            yield Problem(message, f"distill.teacher[{i}].spatial_mlp_version", hint)
        if not teacher.use_head:
            where, message = f"distill.teacher[{i}]", "this teacher has no head (use_head: false)"
            yield from unused_fields(teacher, _OF_HEADS, where, message, "Leave it out.")
            if any(term.kind == "logits" for term in resolve_teachers(spec)[i].terms):
                yield Problem("class scores need a head", f"{where}.use_head", "Set it to true, or take mode: summary.")
    if train.zero_stage == 3:
        hint = "Take train.zero_stage 0, 1 or 2."
        if backbone.spectral_reparam:
            where = "model.backbone.spectral_reparam"
            yield Problem("ZeRO-3 shards the matrices, whose norms are needed", where, hint)
        if train.compile:
            yield Problem("ZeRO-3 gathers weights by hooks that cannot be compiled", "train.compile", hint)
    for i, teacher in enumerate(spec.distill.teacher):
        where, hint = f"distill.teacher[{i}].model.backbone", "The student's is model.backbone.{name}."
        yield from unused_fields(teacher.model.backbone, _STUDENT_ONLY, where, "a teacher is not trained", hint)
