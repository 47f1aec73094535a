"""Any timm model as a backbone: one summary vector and one spatial map."""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.models import VisionTransformer
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.features import Features


class TimmBackbone(nn.Module):
    """A timm CNN, ViT or hierarchical model.

    Args:
        name: timm's model name, without a weights tag.
        num_classes: of the classifier; 0 for none.
        kwargs: passed to ``timm.create_model``.

    Raises:
        SpecError: the model refuses ``kwargs``.
    """

    def __init__(self, name: str, num_classes: int = 0, where: str = "model.backbone", **kwargs: Any) -> None:
        super().__init__()
        if timm.models.model_entrypoint(name).__module__.endswith(".vision_transformer"):
            kwargs.setdefault("dynamic_img_size", True)
        try:
            self.model = timm.create_model(name, pretrained=False, num_classes=num_classes, **kwargs)
        except (TypeError, AssertionError, ValueError) as error:
            raise SpecError(f"timm cannot build {name!r}: {error}", where=f"{where}.kwargs") from None
        self.num_classes = num_classes
        self.spatial_dim: int = self.model.num_features
        self.summary_dim: int = getattr(self.model, "head_hidden_size", None) or self.model.num_features
        self.token_dim = self.summary_dim
        self.stride = _stride(self.model)
        # A plain ViT cuts its input into whole patches; CNNs and hierarchical models pad.
        self.needs_multiple = hasattr(self.model, "patch_embed") and hasattr(self.model, "blocks")
        self.classifier_prefix: tuple[str, ...] = _classifier(self.model)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """As timm's."""
        self.model.set_grad_checkpointing(enable)

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = frozenset({"summary", "spatial"})) -> Features:
        """Normalised ``[B, 3, H, W]`` to summary ``[B, D]``, spatial ``[B, h, w, D]`` and, if wanted, ``logits [B, C]``."""
        raw = self.model.forward_features(images)
        summary = self.model.forward_head(raw, pre_logits=True) if wanted & {"summary", "logits"} else None
        named = {}
        if "logits" in wanted:
            named["logits"] = self.model.get_classifier()(summary)
        spatial = self._spatial(raw, images) if "spatial" in wanted else None
        return Features(summary if "summary" in wanted else None, spatial, named)

    def _spatial(self, raw: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        if raw.ndim == 4:
            return raw if getattr(self.model, "output_fmt", "NCHW") == "NHWC" else raw.permute(0, 2, 3, 1)
        patches = raw[:, getattr(self.model, "num_prefix_tokens", 0) :]
        h, w = images.shape[-2] // self.stride, images.shape[-1] // self.stride
        return patches.reshape(images.shape[0], h, w, -1)


def _stride(model: nn.Module) -> int:
    if isinstance(model, VisionTransformer):
        return int(model.patch_embed.patch_size[0])
    info = getattr(model, "feature_info", None)
    if info:
        last = info[-1] if isinstance(info, list) else info.info[-1]
        return int(last["reduction"])
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if patch is None:
        raise SpecError(f"the stride of {type(model).__name__} is not known", where="model.backbone.type")
    return int(patch[0])


def _classifier(model: nn.Module) -> tuple[str, ...]:
    names = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)

