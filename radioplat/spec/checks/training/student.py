"""Contradictions in the student's structure that the spec alone shows: windows, heads, noise, what is frozen."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.model import BackboneConfig
from radioplat.spec.schema.root import Spec

HEAD_VERSIONS = ("v2", "attn")
_STUDENT_ONLY = ("freeze_norm", "drop_path", "spectral_reparam", "cpe")


def student_structure(spec: Spec) -> Iterator[Problem]:
    """What is wrong with ``distill.vitdet``, the heads' fields, and those of the student's backbone."""
    yield from _vitdet(spec)
    yield from _heads(spec)
    backbone, train = spec.model.backbone, spec.train
    if train.zero_stage == 3:
        hint = "Take train.zero_stage 0, 1 or 2."
        if backbone.spectral_reparam:
            where = "model.backbone.spectral_reparam"
            yield Problem("ZeRO-3 cuts up the matrices whose norm is needed", where, hint)
        if train.compile:
            yield Problem("ZeRO-3 gathers weights by hooks that cannot be compiled", "train.compile", hint)
    default = BackboneConfig()
    for i, teacher in enumerate(spec.distill.teacher):
        for name in _STUDENT_ONLY:
            if getattr(teacher.model.backbone, name) != getattr(default, name):
                where = f"distill.teacher[{i}].model.backbone.{name}"
                yield Problem("a teacher is not trained", where, f"The student's is model.backbone.{name}.")


def _vitdet(spec: Spec) -> Iterator[Problem]:
    config, where = spec.distill.vitdet, "distill.vitdet"
    if config.num_global is not None and config.num_windowed is not None:
        hint = "Leave one of them unset."
        yield Problem("num_global says already which blocks are windowed", f"{where}.num_windowed", hint)


def _heads(spec: Spec) -> Iterator[Problem]:
    for i, teacher in enumerate(spec.distill.teacher):
        where = f"distill.teacher[{i}]"
        if teacher.spatial_mlp_version not in HEAD_VERSIONS:
            message, hint = f"no head is called {teacher.spatial_mlp_version!r}", f"Valid: {', '.join(HEAD_VERSIONS)}."
            yield Problem(message, f"{where}.spatial_mlp_version", hint)
