"""A student that radioplat trained, as a teacher."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.features import Features
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import load_student, read_architecture
from radioplat.models.student.student import build_backbone, taught_summary
from radioplat.models.weights.read import read_weights
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, NativeInput, refuse_kwargs, weights_field


class CheckpointTeacher(Adapter):
    """A checkpoint folder, which contains its architecture, normalisation and size."""

    kind = "radioplat"

    def __init__(self, architecture: StudentArchitecture, where: str) -> None:
        super().__init__()
        self.backbone = build_backbone(architecture, where)
        # A timm model has its own classifier.
        apart = architecture.num_classes and isinstance(self.backbone, RadioViT)
        self.classifier = nn.Linear(self.backbone.summary_dim, architecture.num_classes) if apart else None
        self.slots = architecture.summary_slots
        self.stride, self.needs_multiple = self.backbone.stride, self.backbone.needs_multiple
        self.logits_dim, self.class_names = architecture.num_classes, architecture.class_names
        self.native = NativeInput(architecture.mean, architecture.std, architecture.img_size, "class tokens or pool")

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> CheckpointTeacher:
        """Build the structure without weights."""
        refuse_kwargs(teacher, "a checkpoint")
        architecture = read_architecture(teacher.weights or "", weights_field(teacher))
        return cls(architecture, f"{teacher.where}.model.backbone")

    def load(self, teacher: ResolvedTeacher) -> None:
        """Load the weights."""
        student = load_student(teacher.weights or "", weights_field(teacher))
        self.backbone, self.classifier = student.backbone, student.classifier

    def check(self, teacher: ResolvedTeacher) -> None:
        """Read the weights and check that they fit."""
        read_weights(teacher.weights or "", weights_field(teacher))

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        classifier = self.classifier if "logits" in wanted else None
        features = self.backbone(images, wanted - {"logits"} | {"summary"} if classifier is not None else wanted)
        named = {name: value for name, value in features.named.items() if name in wanted}
        if classifier is not None:
            named["logits"] = classifier(features.summary)
        summary = taught_summary(features, self.slots) if "summary" in wanted else None
        return Features(summary, features.spatial if "spatial" in wanted else None, named)
