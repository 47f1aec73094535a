"""DINOv2 and DINOv3 as teachers: Meta's names and layouts, with timm's models."""

from __future__ import annotations

import re

from radioplat.teachers.adapters.timm_model import TimmTeacher

_V2 = {"s": "small", "b": "base", "l": "large", "g": "giant"}
_V3 = {"s": "small", "splus": "small_plus", "b": "base", "l": "large", "hplus": "huge_plus", "7b": "7b"}


class DinoTeacher(TimmTeacher):
    """Class token and map of a DINO model, after its last norm.

    ``type`` is Meta's name (``dinov2_vitb14_reg``, ``dinov3_vitl16``) or timm's. Weights are Meta's ``.pth``, or
    timm's.
    """

    kind = "dino"
    default_summary = "class"

    @classmethod
    def timm_name(cls, type_name: str) -> str:
        """Convert Meta's name to timm's; other names are returned unchanged."""
        if match := re.fullmatch(r"dinov2_vit([sblg])14(_reg)?", type_name):
            return f"vit_{_V2[match[1]]}_patch14_{'reg4_' if match[2] else ''}dinov2"
        if (match := re.fullmatch(r"dinov3_vit(\w+?)16(plus)?", type_name)) and match[1] + (match[2] or "") in _V3:
            return f"vit_{_V3[match[1] + (match[2] or '')]}_patch16_dinov3"
        if match := re.fullmatch(r"dinov3_convnext_(tiny|small|base|large)", type_name):
            return f"convnext_{match[1]}"
        return type_name

    @classmethod
    def summary_for(cls, summary, name, cfg):
        """Use the pooled vector of a DINO ConvNeXt, which has no class token."""
        return "native" if name.startswith("convnext") and summary == "class" else summary
