"""SAM's image encoder as a teacher: Meta's layout or timm's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, options_of
from radioplat.teachers.adapters.timm_model import TimmTeacher

_NAMES = {"sam_vit_b": "samvit_base_patch16", "sam_vit_l": "samvit_large_patch16", "sam_vit_h": "samvit_huge_patch16"}


class SamTeacher(TimmTeacher):
    """SAM's encoder. It has no class token: the summary is the mean of the map, and RADIO uses the map alone.

    ``type`` is ``sam_vit_{b,l,h}`` or timm's name. ``kwargs.neck: false`` returns the wide features before the neck,
    which RADIO distils; the default is the input of SAM's own mask decoder. Other parts of a SAM file are left out.
    """

    kind = "sam"
    default_summary = "mean"
    neck = True

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> SamTeacher:
        """Build the structure without weights."""
        options, kwargs = options_of(teacher, neck=(True, False))
        built = super().build(replace(teacher, backbone=replace(teacher.backbone, kwargs=kwargs)))
        built.neck = options["neck"]
        # Positions are resized to the image in forward; only this check prevents other sizes.
        built.target.patch_embed.strict_img_size = False
        built.needs_multiple = True
        return built

    @classmethod
    def timm_name(cls, type_name: str) -> str:
        """Convert Meta's name to timm's."""
        return _NAMES.get(type_name, type_name)

    @classmethod
    def built_for(cls, teacher: ResolvedTeacher) -> int | None:
        """Return None: its position tables always have the size of its training images."""
        return None

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        model = self.target
        neck = model.neck
        if not self.neck:
            model.neck = nn.Identity()
        try:
            return super().forward(images, wanted)
        finally:
            model.neck = neck
