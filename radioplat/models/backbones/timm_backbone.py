"""Any timm model as a backbone: one summary vector and one spatial map."""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.models import VisionTransformer
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.features import Features

# Families whose position embeddings are resized to the image in forward.
_ANY_SIZE = ("vision_transformer", "vision_transformer_hybrid", "deit", "eva")


class TimmBackbone(nn.Module):
    """A timm CNN, ViT or hierarchical model.

    Args:
        name: timm's model name, without a weights tag.
        num_classes: of the classifier; 0 for none.
        where: the spec field of the backbone, for messages.
        input_size: side of its images in pixels; used by models that are built for one size (Swin, MaxViT).
        kwargs: passed to ``timm.create_model``.

    Raises:
        SpecError: the model rejects ``kwargs``, or its features have an unsupported form.
    """

    def __init__(
        self,
        name: str,
        num_classes: int = 0,
        where: str = "model.backbone",
        input_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if timm.models.model_entrypoint(name).__module__.rpartition(".")[2] in _ANY_SIZE:
            kwargs.setdefault("dynamic_img_size", True)
        elif input_size and getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "fixed_input_size", False):
            kwargs.setdefault("img_size", input_size)
        try:
            self.model = timm.create_model(name, pretrained=False, num_classes=num_classes, **kwargs)
        except (TypeError, AssertionError, ValueError) as error:
            raise SpecError(f"timm cannot build {name!r}: {error}", where=f"{where}.kwargs") from None
        self.num_classes = num_classes
        self.where = where
        # True if the built model accepts images of other sizes.
        self.any_size = "img_size" not in kwargs or bool(kwargs.get("dynamic_img_size"))
        self.name, self.arguments = name, {"num_classes": num_classes, **kwargs}  # to build the same model again
        self.spatial_dim: int = self.model.num_features
        self.summary_dim: int = getattr(self.model, "head_hidden_size", None) or self.model.num_features
        self.token_dim = self.summary_dim
        self.stride = _stride(self.model, where)
        # A plain ViT needs a multiple of the patch size; CNNs and hierarchical models pad.
        self.needs_multiple = hasattr(self.model, "patch_embed") and hasattr(self.model, "blocks")
        self.classifier_prefix: tuple[str, ...] = _classifier(self.model)
        self.channels_last = False  # on a CPU, the memory format of the images and of what convolutions make of them

    @property
    def gains_from_channels_last(self) -> bool:
        """Whether a CPU trains it faster with ``channels_last``: it has depthwise convolutions.

        Not with a strided 1 x 1 convolution: torch 2.13's backward writes beyond its memory if that has fewer than 16
        input channels (MobileOne, FastViT).
        """
        convolutions = [module for module in self.model.modules() if isinstance(module, nn.Conv2d)]
        return any(1 < each.groups == each.in_channels for each in convolutions) and not any(
            tuple(each.kernel_size) == (1, 1) and max(each.stride) > 1 for each in convolutions
        )

    @property
    def target(self) -> nn.Module:
        """The module relative to which users name submodules: timm's model."""
        return self.model

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Call timm's method of this name.

        Raises:
            SpecError: the model has no gradient checkpointing.
        """
        try:
            self.model.set_grad_checkpointing(enable)
        except (AssertionError, AttributeError):
            name = type(self.model).__name__
            raise SpecError(f"timm's {name} has no gradient checkpointing", where="train.grad_checkpointing") from None

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = frozenset({"summary", "spatial"})) -> Features:
        """Compute summary ``[B, D]``, spatial ``[B, h, w, D]`` and, if wanted, ``logits [B, C]`` of normalised ``[B, 3,
        H, W]``."""
        if self.channels_last and images.device.type == "cpu":  # on a GPU it was not measured
            images = images.contiguous(memory_format=torch.channels_last)
        raw = self.model.forward_features(images)
        summary = self.model.forward_head(raw, pre_logits=True) if "summary" in wanted else None
        # Use timm's own head: some models average two classifiers, or pool and classify in one layer.
        named = {"logits": self.model.forward_head(raw)} if "logits" in wanted else {}
        return Features(summary, self.spatial(raw, images) if "spatial" in wanted else None, named)

    def spatial(self, raw: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Return the output of ``forward_features`` as a map ``[B, h, w, D]``.

        Raises:
            SpecError: it is none: the model keeps a class token alone, or has another grid at this size.
        """
        if raw.ndim == 4:
            return raw if getattr(self.model, "output_fmt", "NCHW") == "NHWC" else raw.permute(0, 2, 3, 1)
        try:
            return map_of(raw[:, getattr(self.model, "num_prefix_tokens", 0) :], images, self.stride)
        except ValueError as error:
            hint = "Take a model whose last layer keeps a token for each patch, or images of another size."
            raise SpecError(f"timm's {self.name}: {error}", where=f"{self.where}.type", hint=hint) from None


def map_of(tokens: torch.Tensor, images: torch.Tensor, stride: int) -> torch.Tensor:
    """Arrange patch tokens ``[B, N, D]`` of ``images`` (cropped to complete patches, or padded) as ``[B, h, w, D]``.

    Raises:
        ValueError: ``N`` is no grid of this image.
    """
    height, width = images.shape[-2:]
    for h, w in ((height // stride, width // stride), (-(-height // stride), -(-width // stride))):
        if h * w == tokens.shape[1]:
            return tokens.reshape(tokens.shape[0], h, w, tokens.shape[2])
    raise ValueError(f"its {tokens.shape[1]} tokens are no map of {height // stride} x {width // stride} positions")


def _stride(model: nn.Module, where: str) -> int:
    patch_embed = getattr(model, "patch_embed", None)
    if isinstance(model, VisionTransformer) and patch_embed is not None and hasattr(patch_embed, "feat_ratio"):
        return int(patch_embed.feat_ratio())  # for a hybrid model: the CNN's stride times the patch size
    info = getattr(model, "feature_info", None)
    if info:
        last = info[-1] if isinstance(info, list) else info.info[-1]
        return int(last["reduction"])
    patch = getattr(patch_embed, "patch_size", None)
    if patch is None:
        raise SpecError(f"the stride of {type(model).__name__} is not known", where=f"{where}.type")
    return int(patch[0])


def _classifier(model: nn.Module) -> tuple[str, ...]:
    names = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    return tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))
