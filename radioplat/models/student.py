"""The student: normalisation, backbone, one head per teacher."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models import names
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture, TeacherHead
from radioplat.models.radio_vit import RadioViT
from radioplat.models.timm_backbone import TimmBackbone


@dataclass(frozen=True)
class StudentArchitecture:
    """Everything needed to build a student but its weights; kept as JSON in the checkpoint.

    Attributes:
        type: TAO's or timm's backbone name.
        kwargs: constructor arguments beside it.
        num_class_tokens: of a RADIO ViT.
        img_size: training resolution in pixels.
        num_classes: of a classifier on the backbone itself (``radioplat train``); 0 for none.
        mean, std: normalisation of images in [0, 1].
    """

    type: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_class_tokens: int = 1
    cpe_max_size: int | None = None
    num_registers: int | None = None
    register_multiple: int | None = None
    img_size: int = 224
    num_classes: int = 0
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    heads: tuple[HeadArchitecture, ...] = ()

    @property
    def summary_slots(self) -> list[int]:
        """Class tokens that make the summary; empty for all of them.

        A teacher without a summary loss keeps its class token, but nothing ever taught that token to sum up an image
        (RADIO's ``use_summary: false``): it stays out.
        """
        return [head.token_slot for head in self.heads if head.summary_dim or head.logits_dim]

    def to_json(self) -> str:
        """JSON text; :meth:`from_json` reads it back equal."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StudentArchitecture:
        """Inverse of :meth:`to_json`."""
        raw = json.loads(text)
        raw["heads"] = tuple(HeadArchitecture(**h) for h in raw["heads"])
        return cls(**{**raw, "mean": tuple(raw["mean"]), "std": tuple(raw["std"])})


def build_backbone(architecture: StudentArchitecture, where: str = "model.backbone") -> RadioViT | TimmBackbone:
    """Build an untrained backbone.

    Raises:
        SpecError: no such name, or arguments that it refuses.
    """
    resolved = names.resolve(architecture.type, architecture.kwargs, f"{where}.type")
    kwargs = dict(resolved.kwargs)
    if "num_classes" in kwargs:
        raise SpecError(
            "the number of classes is not an argument of a backbone",
            where=f"{where}.kwargs.num_classes",
            hint="Fine-tuning takes dataset.num_classes.",
        )
    if not resolved.radio:
        return TimmBackbone(resolved.name, architecture.num_classes, where, architecture.img_size, **kwargs)
    registers = architecture.num_registers
    named_registers = kwargs.pop("num_registers", None)
    if registers is None and architecture.register_multiple is None:
        registers = named_registers
    return RadioViT(
        num_class_tokens=architecture.num_class_tokens,
        cpe_max_size=architecture.cpe_max_size or architecture.img_size,
        num_registers=registers,
        register_multiple=architecture.register_multiple,
        **kwargs,
    )


class Student(nn.Module):
    """A student backbone with its heads.

    ``student(images)`` takes uint8, or floats in [0, 1], ``[B, 3, H, W]``; normalisation is inside.
    ``student.head(name, features)`` gives those features in the space of teacher ``name``.
    """

    def __init__(self, architecture: StudentArchitecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.backbone = build_backbone(architecture)
        for h in architecture.heads:
            if hasattr(nn.ModuleDict(), h.name):
                raise SpecError(f"no teacher can be called {h.name!r}", where="distill.teacher", hint="Give it a name.")
        self.heads = nn.ModuleDict(
            {h.name: TeacherHead(h, self.backbone.token_dim, self.backbone.spatial_dim) for h in architecture.heads}
        )
        needs_classifier = architecture.num_classes and isinstance(self.backbone, RadioViT)
        self.classifier = nn.Linear(self.backbone.summary_dim, architecture.num_classes) if needs_classifier else None
        self.register_buffer("mean", torch.tensor(architecture.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(architecture.std).view(1, 3, 1, 1), persistent=False)

    @property
    def head_names(self) -> list[str]:
        """Teachers that have a head, in spec order."""
        return [h.name for h in self.architecture.heads]

    @property
    def stride(self) -> int:
        """Pixels a position of the spatial map covers."""
        return self.backbone.stride

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = frozenset({"summary", "spatial"})) -> Features:
        """Images to backbone features; see :class:`~radioplat.models.features.Features`."""
        unit = images.float() if images.is_floating_point() else images.float() / 255
        normalised = (unit - self.mean.float()) / self.std.float()
        dtype = next(self.backbone.parameters()).dtype
        features = self.backbone(normalised.to(dtype), wanted)
        if "logits" in wanted and self.classifier is not None:
            features.named["logits"] = self.classifier(features.summary)
        features.summary = taught_summary(features, self.architecture.summary_slots)
        return features

    def head(self, name: str, features: Features) -> Features:
        """Features in the space of teacher ``name``."""
        return self.heads[name](features)


def taught_summary(features: Features, slots: list[int]) -> torch.Tensor | None:
    """The summary of ``features`` from the class tokens in ``slots`` alone, ``[B, len(slots) * D]``."""
    tokens = features.named.get("tokens")
    return features.summary if tokens is None or not slots else tokens[:, slots].flatten(1)
