"""Image towers of CLIP, SigLIP and SigLIP2 as teachers: OpenAI's, OpenCLIP's and timm's layouts."""

from __future__ import annotations

import dataclasses
from typing import Any

import timm
import torch

from radioplat.errors import WeightsError
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters import open_clip_names
from radioplat.teachers.adapters.timm_model import TimmTeacher, pretrained_cfg

_FINE_TUNED = (1000, 11821)  # classes of ImageNet-1k and -12k


class ClipTeacher(TimmTeacher):
    """The image tower of CLIP (summary: its embedding in the space shared with text) or SigLIP (its attention pool).

    ``type`` is OpenCLIP's name (``ViT-B-16``, ``ViT-SO400M-14-SigLIP2``), TAO's or timm's. The text tower in a file is
    dropped.
    """

    kind = "clip"

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> ClipTeacher:
        """Build the structure without weights."""
        built = super().build(teacher)
        assert isinstance(built, ClipTeacher)
        if built.summary == "projection" or built.native.summary == "attention pool":
            tower = open_clip_names.text_tower(teacher.backbone.type or "")
            built.native = dataclasses.replace(built.native, text_tower=tower)
        return built

    @classmethod
    def timm_name(cls, type_name: str) -> str:
        """Convert OpenCLIP's name to timm's; other names are returned unchanged."""
        return open_clip_names.timm_name(type_name)

    @classmethod
    def record(cls, type_name: str, name: str) -> Any:
        """Return timm's record of weights; for a name without a tag, of CLIP's own training, not of fine-tuning on
        labels."""
        cfg = pretrained_cfg(type_name, name)
        if "." in type_name or not cfg or cfg.num_classes not in _FINE_TUNED:
            return cfg
        tags = map(timm.get_pretrained_cfg, timm.list_pretrained(f"{name}.*"))
        return next((cfg for cfg in tags if cfg.num_classes not in _FINE_TUNED), cfg)

    @classmethod
    def summary_for(cls, summary: str, name: str, cfg: Any) -> str:
        """Return the embedding if the tower ends in one."""
        ends_in_embedding = "_clip" in name and cfg is not None and cfg.num_classes not in (0, *_FINE_TUNED)
        return "projection" if summary == "native" and ends_in_embedding else summary

    def prepared(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of the image tower, also of TAO's files."""
        tower = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith(("visual.", "model.visual."))}
        return tower or tensors

    def fitting(self, teacher: ResolvedTeacher, fresh: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
        """Return the tensors of the file by timm's names; an error names the projection if only that is missing."""
        try:
            return super().fitting(teacher, fresh)
        except WeightsError:
            if self.summary != "projection":
                raise
            super().fitting(teacher, self.backbone.classifier_prefix)
            raise WeightsError(
                f"{teacher.weights} lacks the projection to the space shared with text",
                where=f"{teacher.where}.model.backbone.kwargs.summary",
                hint="Set it to what the tower pools by (class, mean, attention), or give a file with the projection.",
            ) from None
