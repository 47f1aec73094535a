"""Initial weights of a student."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from radioplat.errors import Problem, WeightsError
from radioplat.models.backbones.names import VIT_SIZES
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.model_kind import ModelKind
from radioplat.models.modifiers.spectral import reparametrize
from radioplat.models.on_meta import on_meta
from radioplat.models.pretrained.match import Match, match_backbone, match_classifier, match_heads
from radioplat.models.pretrained.source import read_source
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student
from radioplat.models.vision_model import model_kind, open_architecture
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import TargetNormFit
from radioplat.spec.schema.root import Spec

BACKBONE_PATH, MODEL_PATH = "model.backbone.pretrained_backbone_path", "train.pretrained_model_path"


def start_student(spec: Spec, architecture: StudentArchitecture) -> Student:
    """Build a student with its initial weights: seeded by ``train.seed``, then the pretrained ones that the spec names.

    ``model.backbone.pretrained_backbone_path`` provides the backbone; ``train.pretrained_model_path`` the heads too,
    each for the teacher of its name.

    Raises:
        WeightsError: pretrained weights cannot be read, or the backbone does not fit; with ``train.pretrained_strict``
            also if anything is not used or starts untrained.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.train.seed)
        # Pretrained weights are plain, so they are loaded into plain layers.
        student = Student(replace(architecture, spectral_reparam=False))
    for where, path in student_paths(spec):
        match = _match(student, spec, path, where, shapes_only=False)
        student.load_state_dict(match.tensors, strict=False)
        student.raw_heads |= match.raw_heads
    if architecture.spectral_reparam:
        reparametrize(student.backbone)
        student.architecture = architecture
    return student


def start_notes(spec: Spec, architecture: StudentArchitecture) -> list[str]:
    """Describe the pretrained weights that are not used or start untrained, a sentence each with its field.

    Only shapes are read.

    Raises:
        WeightsError: as :func:`start_student`, but for values.
    """
    return [f"{where}: {note}" for where, match in matches(spec, architecture) for note in match.notes]


def matches(spec: Spec, architecture: StudentArchitecture) -> list[tuple[str, Match]]:
    """Match the existing pretrained weights with a student by shapes alone; each with its field.

    Raises:
        WeightsError: as :func:`start_student`, but for values.
    """
    with on_meta():
        student = Student(replace(architecture, spectral_reparam=False))
        return [
            (where, _match(student, spec, path, where, shapes_only=True))
            for where, path in student_paths(spec)
            if Path(path).exists()
        ]


def known_architecture(spec: Spec) -> StudentArchitecture | None:
    """Return the architecture that the student's pretrained weights describe; None if they do not, or do not exist.

    Raises:
        WeightsError: they cannot be read.
    """
    for where, path in _paths(spec):
        if model_kind(path):
            return open_architecture(path, where).student
        if Path(path).exists():
            known = architecture_of(path, where, spec.model.backbone.kwargs.get("num_heads"))
            if known is not None:
                return known
    return None


def architecture_of(path: str, where: str, num_heads: int | None = None) -> StudentArchitecture | None:
    """Return the architecture of the RADIO ViT in a RADIO file or folder, without heads; None if it is no such file.

    Args:
        num_heads: of attention, if its width does not imply them.

    Raises:
        WeightsError: it cannot be read.
    """
    source = read_source(path, where, shapes_only=True, num_heads=num_heads)
    if not source.arguments:
        return None
    kwargs = dict(source.arguments)
    own = {k: kwargs.pop(k) for k in ("num_class_tokens", "cpe_max_size", "num_registers")}
    size = next((n for n, s in VIT_SIZES.items() if s["embed_dim"] == kwargs["embed_dim"]), "base")
    return StudentArchitecture(type=f"radio_vit_{size}_patch{kwargs.pop('patch_size')}", kwargs=kwargs, **own)


def _paths(spec: Spec) -> list[tuple[str, str]]:
    both = (
        (BACKBONE_PATH, spec.model.backbone.pretrained_backbone_path),
        (MODEL_PATH, spec.train.pretrained_model_path),
    )
    return [(where, path) for where, path in both if path]


def student_paths(spec: Spec) -> list[tuple[str, str]]:
    """Return the paths that a student is initialised from; detectors are for :mod:`radioplat.design.detector`."""
    return [(where, path) for where, path in _paths(spec) if model_kind(path) is not ModelKind.detector]


def _match(student: Student, spec: Spec, path: str, where: str, shapes_only: bool) -> Match:
    heads = student.backbone.blocks[0].attn.num_heads if isinstance(student.backbone, RadioViT) else None
    source = read_source(path, where, shapes_only, heads)
    match = match_backbone(student, source, path, where)
    if where == MODEL_PATH:
        for part in (match_heads(student, source, _moving(spec)), match_classifier(student, source)):
            match.tensors |= part.tensors
            match.notes += part.notes
            match.raw_heads |= part.raw_heads
    if spec.train.pretrained_strict and match.notes:
        hint = "Mend it, or accept it with train.pretrained_strict=false."
        raise WeightsError(*[Problem(f"{path}: {note}", where, hint) for note in match.notes])
    return match


def _moving(spec: Spec) -> set[tuple[str, str]]:
    """Return teacher's name and kind of the targets whose normalization is estimated while the student trains."""
    if spec.distill.target_norm.fit is TargetNormFit.before:
        return set()
    return {(teacher.name, kind) for teacher in resolve_teachers(spec) for kind in teacher.norms}
