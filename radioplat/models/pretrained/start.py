"""The student before its first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from radioplat.errors import Problem, WeightsError
from radioplat.models.backbones.names import VIT_SIZES
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.model_kind import ModelKind
from radioplat.models.modifiers.spectral import reparametrize
from radioplat.models.pretrained.match import Match, match_backbone, match_classifier, match_heads
from radioplat.models.pretrained.source import read_source
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import model_kind, open_architecture
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import TargetNormFit
from radioplat.spec.schema.root import Spec

BACKBONE_PATH, MODEL_PATH = "model.backbone.pretrained_backbone_path", "train.pretrained_model_path"


def start_student(spec: Spec, architecture: StudentArchitecture) -> Student:
    """A student with its starting weights: seeded by ``train.seed``, then what the spec names as pretrained.

    ``model.backbone.pretrained_backbone_path`` gives the backbone; ``train.pretrained_model_path`` the heads too, each
    to the teacher of its name.

    Raises:
        WeightsError: pretrained weights cannot be read, or the backbone does not fit; with ``train.pretrained_strict``
            also anything that found no place.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.train.seed)
        # Pretrained weights are plain, so they are loaded into plain layers.
        student = Student(replace(architecture, spectral_reparam=False))
    for where, path in _student_paths(spec):
        found = _match(student, spec, path, where, shapes_only=False)
        student.load_state_dict(found.tensors, strict=False)
        student.raw_heads |= found.raw_heads
    if architecture.spectral_reparam:
        reparametrize(student.backbone)
        student.architecture = architecture
    return student


def start_notes(spec: Spec, architecture: StudentArchitecture) -> list[str]:
    """What of the pretrained weights that are there finds no place or starts anew, a sentence each with its field.

    Only shapes are read.

    Raises:
        WeightsError: as :func:`start_student`, but for values.
    """
    return [f"{where}: {note}" for where, found in matches(spec, architecture) for note in found.notes]


def matches(spec: Spec, architecture: StudentArchitecture) -> list[tuple[str, Match]]:
    """What a student takes of the pretrained weights that are there, by shapes alone: each with its field.

    Raises:
        WeightsError: as :func:`start_student`, but for values.
    """
    with torch.device("meta"):
        student = Student(replace(architecture, spectral_reparam=False))
        return [
            (where, _match(student, spec, path, where, shapes_only=True))
            for where, path in _student_paths(spec)
            if Path(path).exists()
        ]


def known_architecture(spec: Spec) -> StudentArchitecture | None:
    """What the student's pretrained weights say that they are; None where they do not say, or are not there.

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
    """The architecture of the RADIO ViT in a RADIO file or folder, without heads; None where it is no such file.

    Args:
        num_heads: of attention, where its width does not tell.

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


def _student_paths(spec: Spec) -> list[tuple[str, str]]:
    """Those of what a student starts from; what a detector gives is for :mod:`radioplat.design.detector`."""
    return [(where, path) for where, path in _paths(spec) if model_kind(path) is not ModelKind.detector]


def _match(student: Student, spec: Spec, path: str, where: str, shapes_only: bool) -> Match:
    source = read_source(path, where, shapes_only, _attention_heads(student))
    found = match_backbone(student, source, path, where)
    if where == MODEL_PATH:
        for part in (match_heads(student, source, _moving(spec)), match_classifier(student, source)):
            found.tensors |= part.tensors
            found.notes += part.notes
            found.raw_heads |= part.raw_heads
    if spec.train.pretrained_strict and found.notes:
        hint = "Mend it, or accept it with train.pretrained_strict=false."
        raise WeightsError(*[Problem(f"{path}: {note}", where, hint) for note in found.notes])
    return found


def _moving(spec: Spec) -> set[tuple[str, str]]:
    """Teacher's name and kind of the targets whose transform is measured while the student trains."""
    if spec.distill.target_norm.fit is not TargetNormFit.running:
        return set()
    return {(teacher.name, kind) for teacher in resolve_teachers(spec) for kind in teacher.norms}


def _attention_heads(student: Student) -> int | None:
    return student.backbone.blocks[0].attn.num_heads if isinstance(student.backbone, RadioViT) else None
