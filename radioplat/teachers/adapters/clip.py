"""Image towers of CLIP, SigLIP and SigLIP2 as teachers: OpenAI's, OpenCLIP's and timm's layouts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import timm
import torch

from radioplat.errors import WeightsError
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters import open_clip_names
from radioplat.teachers.adapters.timm_model import TimmTeacher, pretrained_cfg

_PE_SIZES = {"T": "tiny", "S": "small", "B": "base", "L": "large", "G": "gigantic", "bigG": "gigantic"}
_FINE_TUNED = (1000, 11821)  # classes of ImageNet-1k and -12k


class ClipTeacher(TimmTeacher):
    """The image tower of CLIP, SigLIP or a Perception Encoder (PE).

    Summary: of CLIP and PE-Core the embedding in the space shared with text, of SigLIP the attention pool, of PE-Lang
    and PE-Spatial the mean of the map. ``type`` is OpenCLIP's name (``ViT-B-16``, ``ViT-gopt-16-SigLIP2-384``), Meta's
    (``PE-Core-L14-336``), TAO's or timm's. The text tower in a file is dropped.
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
        """Convert OpenCLIP's name or Meta's to timm's; other names are returned unchanged."""
        perception = re.fullmatch(r"PE-(Core|Lang|Spatial)-([TSBLG]|bigG)-?(\d\d)(?:-(\d+))?", type_name)
        if perception:
            kind, size, patch, pixels = perception.groups()
            return f"vit_pe_{kind.lower()}_{_PE_SIZES[size]}_patch{patch}_{pixels or 224}"
        return open_clip_names.timm_name(type_name)

    @classmethod
    def record(cls, tagged: str, name: str) -> Any:
        """Return timm's record of weights; for a name without a tag, of CLIP's own training, not of fine-tuning on
        labels."""
        cfg = pretrained_cfg(tagged, name)
        if "." in tagged or not cfg or cfg.num_classes not in _FINE_TUNED:
            return cfg
        tags = map(timm.get_pretrained_cfg, timm.list_pretrained(f"{name}.*"))
        return next((cfg for cfg in tags if cfg.num_classes not in _FINE_TUNED), cfg)

    @classmethod
    def summary_for(cls, summary: str, name: str, cfg: Any) -> str:
        """Return the embedding if the tower ends in one."""
        may_end_in_embedding = ("_clip" in name or "_pe_core" in name) and cfg is not None
        ends_in_embedding = may_end_in_embedding and cfg.num_classes not in (0, *_FINE_TUNED)
        return "projection" if summary == "native" and ends_in_embedding else summary

    def prepared(self, tensors: dict[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
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
