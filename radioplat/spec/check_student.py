"""Contradictions in the student's structure that the spec alone shows: windows, heads, noise, what is frozen."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.model import BackboneConfig
from radioplat.spec.root import Spec

HEAD_VERSIONS = ("v2", "attn")
_STUDENT_ONLY = ("freeze_norm", "drop_path", "spectral_reparam", "cpe")


def student_structure(spec: Spec) -> Iterator[Problem]:
    """What is wrong with ``distill.vitdet``, the heads' fields, and those of the student's backbone."""
    yield from _vitdet(spec)
    yield from _heads(spec)
    backbone, train = spec.model.backbone, spec.train
    if not 0 <= backbone.drop_path < 1:
        yield Problem(f"a probability below 1 is needed, not {backbone.drop_path}", "model.backbone.drop_path")
    if not 0 <= train.damp <= 1:
        yield Problem(f"a spread between 0 and 1 is needed, not {train.damp}", "train.damp")
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
    if not 0 <= config.prob <= 1:
        yield Problem(f"a probability is needed, not {config.prob}", f"{where}.prob")
    for i, size in enumerate(config.window_sizes):
        if size < 2:
            yield Problem(f"a window has at least 2 patches a side, not {size}", f"{where}.window_sizes[{i}]")
    for name in ("num_global", "num_windowed"):
        if (value := getattr(config, name)) is not None and value < 1:
            yield Problem(f"must be at least 1, not {value}", f"{where}.{name}")
    if config.num_global is not None and config.num_windowed is not None:
        hint = "Leave one of them unset."
        yield Problem("num_global says already which blocks are windowed", f"{where}.num_windowed", hint)


def _heads(spec: Spec) -> Iterator[Problem]:
    distill = spec.distill
    if distill.mlp_hidden_size < 1:
        hint = "For a single linear layer set distill.use_mlp: false."
        yield Problem(f"must be at least 1, not {distill.mlp_hidden_size}", "distill.mlp_hidden_size", hint)
    if distill.mlp_num_inner < 0:
        yield Problem(f"must not be negative, not {distill.mlp_num_inner}", "distill.mlp_num_inner")
    for i, teacher in enumerate(distill.teacher):
        where = f"distill.teacher[{i}]"
        if teacher.spatial_mlp_version not in HEAD_VERSIONS:
            message, hint = f"no head is called {teacher.spatial_mlp_version!r}", f"Valid: {', '.join(HEAD_VERSIONS)}."
            yield Problem(message, f"{where}.spatial_mlp_version", hint)
        if teacher.spatial_num_inner is not None and teacher.spatial_num_inner < 0:
            yield Problem(f"must not be negative, not {teacher.spatial_num_inner}", f"{where}.spatial_num_inner")
        if not 1 <= teacher.fd_upsample_factor <= 16:
            message = f"a map is made 1 to 16 times finer, not {teacher.fd_upsample_factor}"
            yield Problem(message, f"{where}.fd_upsample_factor")
        if teacher.summary_token_idx is not None and teacher.summary_token_idx < 0:
            yield Problem(f"must not be negative, not {teacher.summary_token_idx}", f"{where}.summary_token_idx")
