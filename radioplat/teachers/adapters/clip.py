"""Image towers of CLIP, SigLIP and SigLIP2 as teachers: OpenAI's, OpenCLIP's and timm's layouts."""

from __future__ import annotations

import re
from typing import Any

import timm
import torch

from radioplat.errors import WeightsError
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.timm_model import TimmTeacher, pretrained_cfg

_SIZES = {"B": "base", "L": "large", "H": "huge", "g": "giant", "bigG": "gigantic", "SO400M": "so400m"}
_FINE_TUNED = (1000, 11821)  # classes of ImageNet-1k and -12k


class ClipTeacher(TimmTeacher):
    """A CLIP tower's summary is its embedding in the space shared with text; a SigLIP tower's is its attention pool.

    ``type`` is OpenCLIP's name (``ViT-B-16``, ``ViT-SO400M-14-SigLIP2``), TAO's or timm's. Of a file with both towers
    the text tower is dropped.
    """

    kind = "clip"

    @classmethod
    def timm_name(cls, type_name: str) -> str:
        """OpenCLIP's name as timm's; any other name as it is."""
        match = re.fullmatch(r"ViT-(\w+)-(\d+)(-quickgelu)?(-SigLIP2?)?(?:-(\d+))?", type_name)
        if not match or match[1] not in _SIZES:
            return type_name
        family = match[4].lower().replace("-", "") if match[4] else "clip"
        quick = "_quickgelu" if match[3] else ""
        # timm keeps SigLIP2's weights under SigLIP's architectures.
        family = "siglip" if family.startswith("siglip") else family + quick
        size = match[5] or "224"
        return f"vit_{_SIZES[match[1]]}_patch{match[2]}_{family}_{size}"

    @classmethod
    def record(cls, type_name: str, name: str) -> Any:
        """Of a name without a tag, the weights as CLIP's training left them, not those fine-tuned on labels."""
        found = pretrained_cfg(type_name, name)
        if "." in type_name or not found or found.num_classes not in _FINE_TUNED:
            return found
        tags = map(timm.get_pretrained_cfg, timm.list_pretrained(f"{name}.*"))
        return next((cfg for cfg in tags if cfg.num_classes not in _FINE_TUNED), found)

    @classmethod
    def summary_for(cls, asked: str, name: str, cfg: Any) -> str:
        """The embedding where the tower ends in one."""
        ends_in_embedding = "_clip" in name and cfg is not None and cfg.num_classes not in (0, *_FINE_TUNED)
        return "projection" if asked == "native" and ends_in_embedding else asked

    def prepared(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The image tower alone, of a file that TAO wrote too."""
        tower = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith(("visual.", "model.visual."))}
        return tower or tensors

    def fitting(self, teacher: ResolvedTeacher) -> dict[str, torch.Tensor]:
        """As :meth:`Adapter.fitting`; that only the projection is missing is said as that."""
        try:
            return super().fitting(teacher)
        except WeightsError:
            if self.summary != "projection":
                raise
            self.fitted(teacher, fresh=self.backbone.classifier_prefix)
            raise WeightsError(
                f"{teacher.weights} lacks the projection to the space shared with text",
                where=f"{teacher.where}.model.backbone.kwargs.summary",
                hint="Set it to what the tower pools by (class, mean, attention), or give a file with the projection.",
            ) from None
