"""The student before its first step."""

from __future__ import annotations

from dataclasses import replace

import torch

from radioplat.models.checkpoint import is_checkpoint, read_tensors
from radioplat.models.spectral import plain_tensors, reparametrize
from radioplat.models.student import Student, StudentArchitecture
from radioplat.models.weights import load_into, read_weights
from radioplat.spec.root import Spec


def start_student(spec: Spec, architecture: StudentArchitecture) -> Student:
    """A student with its starting weights: seeded by ``train.seed``, then what the spec names as pretrained.

    Raises:
        WeightsError: pretrained weights cannot be read or do not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.train.seed)
        # Pretrained weights are plain, so they are loaded into plain layers.
        student = Student(replace(architecture, spectral_reparam=False))
    path = spec.model.backbone.pretrained_backbone_path
    if path:
        where = "model.backbone.pretrained_backbone_path"
        target = getattr(student.backbone, "model", student.backbone)
        # Another set of labels needs another classifier.
        fresh = getattr(student.backbone, "classifier_prefix", ())
        load_into(target, _backbone_tensors(path, where), path, where, fresh=fresh)
    path = spec.train.pretrained_model_path
    if path:
        where = "train.pretrained_model_path"
        classifier = tuple(f"backbone.model.{name}" for name in getattr(student.backbone, "classifier_prefix", ()))
        tensors = plain_tensors(read_tensors(path, where))
        load_into(student, tensors, path, where, fresh=("heads.", "classifier.", *classifier))
    if architecture.spectral_reparam:
        reparametrize(student.backbone)
        student.architecture = architecture
    return student


def _backbone_tensors(path: str, where: str) -> dict[str, torch.Tensor]:
    tensors = read_weights(path, where)
    if not is_checkpoint(path):
        return tensors
    inner = {k.removeprefix("backbone."): v for k, v in plain_tensors(tensors).items() if k.startswith("backbone.")}
    return {k.removeprefix("model."): v for k, v in inner.items()}
