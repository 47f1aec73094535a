"""A student's backbone with timm's names, for ``timm.create_model(...).load_state_dict``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from torch import nn

from radioplat.errors import EngineError
from radioplat.exporting.weights.plain_student import plain_copy
from radioplat.exporting.weights.radio import FRONT_ARGUMENTS, TIMM_NAMES, known_adaptors
from radioplat.models.backbones import names
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.student.student import Student


@dataclass(frozen=True)
class TimmFile:
    """A backbone for timm.

    Attributes:
        name, kwargs: arguments of ``timm.create_model``.
        tensors: its state dict, fp32.
        mean, std: normalization of images in [0, 1], which timm's model does not include.
        token: the class token of a RADIO ViT that is timm's class token.
        notes: omissions, one sentence each.
    """

    name: str
    kwargs: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    token: int = 0
    notes: list[str] = field(default_factory=list)

    def create(self) -> nn.Module:
        """Return the model with its weights, in evaluation mode."""
        model = timm.create_model(self.name, pretrained=False, **self.kwargs)
        model.load_state_dict(self.tensors)
        return model.eval()

    @property
    def call(self) -> str:
        """The line of Python that builds the model."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.kwargs.items())
        return f"timm.create_model({self.name!r}{', ' if arguments else ''}{arguments})"


def timm_file(student: Student, height: int, width: int, adaptors: Sequence[str] = ()) -> TimmFile:
    """Return the backbone of ``student`` with timm's names.

    A timm student is not changed. A RADIO ViT becomes timm's ViT, equal to it at ``height`` x ``width``: one class
    token stays, the others and the registers become registers, and the position table is cropped for that size.

    Args:
        height, width: pixels; for a RADIO ViT multiples of the patch size.
        adaptors: at most one: the teacher whose class token stays; default: the first with a summary.

    Raises:
        EngineError: several adaptors, or an unknown one.
    """
    if len(adaptors) > 1:
        raise EngineError(
            "timm's models have no adaptors, and one class token",
            where="export.adaptors",
            hint="Give the one teacher whose class token stays, or none.",
        )
    if adaptors:
        known_adaptors(adaptors, student.head_names)
    student = plain_copy(student)
    if isinstance(student.backbone, RadioViT):
        return _vit(student, height, width, adaptors)
    backbone: TimmBackbone = student.backbone
    architecture = student.architecture
    notes = [f"the heads of {', '.join(student.head_names)} are left out"] if student.head_names else []
    tensors = {k: v.clone() for k, v in backbone.model.state_dict().items()}
    return TimmFile(backbone.name, dict(backbone.arguments), tensors, architecture.mean, architecture.std, notes=notes)


def _vit(student: Student, height: int, width: int, adaptors: Sequence[str]) -> TimmFile:
    architecture, backbone = student.architecture, student.backbone
    patch, generator = backbone.stride, backbone.patch_generator
    own = {head.name: head.token_slot for head in architecture.heads}
    slot = own[adaptors[0]] if adaptors else (architecture.summary_slots or [0])[0]
    token = generator.cls_token["token"].detach()
    others = torch.cat([token[:slot], token[slot + 1 :]])
    resolved = names.resolve(architecture.type, architecture.kwargs)
    kwargs = {k: v for k, v in resolved.kwargs.items() if k not in FRONT_ARGUMENTS}
    kwargs |= {"img_size": (height, width), "num_classes": 0, "no_embed_class": True, "dynamic_img_size": True}
    if isinstance(backbone.norm, nn.Identity):
        kwargs["final_norm"] = False
    tensors = {k: v.clone() for k, v in backbone.state_dict().items() if not k.startswith("patch_generator.")}
    tensors["patch_embed.proj.weight"] = generator.embedder.weight.detach().reshape(-1, 3, patch, patch).clone()
    tensors["patch_embed.proj.bias"] = torch.zeros(token.shape[1])
    tensors["cls_token"] = token[slot].reshape(1, 1, -1).clone()
    tensors["pos_embed"] = generator.positions(1, height // patch, width // patch).detach().clone()
    if len(others):
        kwargs["reg_tokens"] = len(others)
        tensors["reg_token"] = others.unsqueeze(0).clone()
    name = next((h.name for h in architecture.heads if h.token_slot == slot), "")
    notes = [
        f"the class token {f'of {name}' if name else slot} is timm's; the other {generator.num_class_tokens - 1} and "
        f"{generator.num_registers} registers are its registers",
        f"positions are for {height} x {width} pixels: at others timm resizes them, and a RADIO ViT crops its table",
    ]
    if student.head_names:
        notes.append(f"the heads of {', '.join(student.head_names)} are left out")
    if student.classifier is not None:
        notes.append("the classifier reads all class tokens and is left out")
    base = TIMM_NAMES.get(token.shape[1], "vit_base_patch16_224")
    return TimmFile(base, kwargs, tensors, architecture.mean, architecture.std, slot, notes)
