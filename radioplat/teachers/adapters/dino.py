"""DINOv2, DINOv3 and EUPE as teachers: Meta's names and layouts, with timm's models."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

import torch
from torch.nn.functional import layer_norm

from radioplat.errors import WeightsError
from radioplat.models.features import Features
from radioplat.teachers.adapters.adapter import BOTH
from radioplat.teachers.adapters.timm_model import TimmTeacher

_V2 = {"s": "small", "b": "base", "l": "large", "g": "giant"}
_V3 = {"s": "small", "splus": "small_plus", "b": "base", "l": "large", "hplus": "huge_plus", "7b": "7b"}
_EUPE = {"t": "tiny", "s": "small", "b": "base"}


class DinoTeacher(TimmTeacher):
    """Class token and map of a DINO or EUPE model, after its last norm.

    A ConvNeXt has the mean of its map in place of a class token. ``type`` is Meta's name (``dinov2_vitb14_reg``,
    ``dinov3_vitl16``, ``eupe_vitb16``) or timm's. Weights are Meta's ``.pth``, or timm's. EUPE (Zhu et al. 2026, arXiv
    2603.22387) has the architectures of DINOv3, its ViTs with biases of queries and values.
    """

    kind = "dino"
    version: ClassVar[int] = 3
    default_summary = "class"

    @classmethod
    def timm_name(cls, type_name: str) -> str:
        """Convert Meta's name to timm's; other names are returned unchanged."""
        if match := re.fullmatch(r"dinov2_vit([sblg])14(_reg)?", type_name):
            return f"vit_{_V2[match[1]]}_patch14_{'reg4_' if match[2] else ''}dinov2"
        if (match := re.fullmatch(r"dinov3_vit(\w+?)16(plus)?", type_name)) and match[1] + (match[2] or "") in _V3:
            return f"vit_{_V3[match[1] + (match[2] or '')]}_patch16_dinov3"
        if match := re.fullmatch(r"eupe_vit([tsb])16", type_name):
            return f"vit_{_EUPE[match[1]]}_patch16_dinov3_qkvb.eupe_lvd1689m"
        if match := re.fullmatch(r"(dinov3|eupe)_convnext_(tiny|small|base|large)", type_name):
            return f"convnext_{match[2]}.{match[1]}_lvd1689m"
        return type_name

    @classmethod
    def summary_for(cls, summary, name, cfg):
        """Use the pooled vector of a DINO ConvNeXt, which has no class token."""
        return "native" if name.startswith("convnext") and summary == "class" else summary

    def prepared(self, tensors: dict[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
        """Return all tensors.

        Raises:
            WeightsError: the file is Meta's and has biases that timm's model of this name leaves out.
        """
        name = self.backbone.name
        if name.endswith("_dinov3") and "storage_tokens" in tensors:
            for key, bias in tensors.items():
                queries, _, values = bias.chunk(3) if key.endswith("attn.qkv.bias") else (bias[:0],) * 3
                if queries.any() or values.any():
                    message = f"timm's {name} has no biases of queries and values, and the file has them: {key}"
                    raise WeightsError(message, where=where, hint=f"Take model.backbone.type: {name}_qkvb.")
        return tensors

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        features = super().forward(images, wanted)
        if features.spatial is None or not self.backbone.name.startswith("convnext"):
            return features
        # timm normalises the mean alone; Meta normalises each position of the map, too.
        norm = self.target.head.norm
        spatial = layer_norm(features.spatial, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return replace(features, spatial=spatial)
