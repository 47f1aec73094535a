"""RT-DETR and RT-DETRv2 (Zhao et al. 2023; Lv et al. 2024): transformers' models on the maps of our backbones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrResNetConfig,
    RTDetrV2Config,
    RTDetrV2ForObjectDetection,
)

from radioplat.errors import SpecError
from radioplat.models.backbones.pyramid import Pyramid

_PRIOR = 0.01  # initial probability of a class (Lin et al. 2017, section 4.1)
# Arguments of transformers' configuration that follow from the backbone, the classes, or our Detector.
_OURS = (
    "backbone_config", "freeze_backbone_batch_norms", "encoder_in_channels", "feat_strides", "encode_proj_layers",
    "decoder_in_channels", "num_feature_levels", "decoder_n_levels", "num_labels", "id2label", "label2id", "eval_size",
    "anchor_image_size", "is_encoder_decoder", "disable_custom_kernels", "tie_word_embeddings",
)  # fmt: skip


def build(kind: str, options: Mapping[str, Any], num_classes: int, pyramid: Pyramid, where: str) -> nn.Module:
    """Build an untrained RT-DETR on the maps of ``pyramid``.

    Args:
        kind: ``rtdetr`` or ``rtdetr_v2``.
        options: arguments of transformers' configuration.
        where: the spec field of the detector, for messages.

    Raises:
        SpecError: an argument does not exist, or has an invalid value.
    """
    first = kind == "rtdetr"
    config_type = RTDetrConfig if first else RTDetrV2Config
    model_type = RTDetrForObjectDetection if first else RTDetrV2ForObjectDetection
    known = {f.name for f in fields(config_type)} - set(_OURS)
    for name in options:
        if name not in known:
            raise SpecError(f"{config_type.__name__} has no such argument", where=f"{where}.options.{name}")
    levels = len(pyramid.strides)
    width = options.get("encoder_hidden_dim", 256)
    # transformers' constructor needs a backbone: give it the smallest one, which is replaced below.
    least = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, layer_type="basic", out_indices=[2, 3, 4]
    )
    try:
        config = config_type(
            backbone_config=least,
            freeze_backbone_batch_norms=False,
            encoder_in_channels=list(pyramid.channels),
            feat_strides=list(pyramid.strides),
            encode_proj_layers=[levels - 1],
            decoder_in_channels=[width] * levels,
            num_feature_levels=levels,
            num_labels=num_classes,
            **options,
        )
        _require_heads(config, where)
        detr = model_type(config)
    except (StrictDataclassError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise SpecError(f"transformers cannot build this detector: {message}", where=f"{where}.options") from None
    detr.model.backbone = _ComputedMaps()
    detr.model.encoder_input_proj = nn.ModuleList(
        nn.Sequential(nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width)) for c in pyramid.channels
    )
    for name in ("class_embed", "bbox_embed"):  # v2 has the decoder's heads here too, but uses the decoder's
        if name in detr._modules:
            delattr(detr, name)
    _start(detr)
    return detr


def run(detr: nn.Module, maps: list[torch.Tensor], images: torch.Tensor, targets: list[dict[str, torch.Tensor]] | None):
    """Run ``detr`` on ``maps``; arguments and output as :class:`radioplat.models.detectors.base.Detector`."""
    detr.model.backbone.maps = maps
    try:
        return detr(images, labels=targets)
    finally:
        detr.model.backbone.maps = None


def input_projections(detr: nn.Module) -> nn.ModuleList:
    """Return the layers that bring the maps to the encoder's width, one a map."""
    return detr.model.encoder_input_proj


def level_shapes(detr: nn.Module, shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return heights and widths of the maps that the encoder reads: those of the backbone."""
    return shapes


def _require_heads(config: Any, where: str) -> None:
    """Check the numbers of attention heads: transformers accepts any number, and fails at the first image."""
    for heads, width in (("encoder_attention_heads", "encoder_hidden_dim"), ("decoder_attention_heads", "d_model")):
        if getattr(config, heads) < 1 or getattr(config, width) % getattr(config, heads):
            message = f"does not divide {width} ({getattr(config, width)})"
            raise SpecError(message, where=f"{where}.options.{heads}")


def _start(detr: nn.Module) -> None:
    """Initialise weights as the authors' own code does (github.com/lyuwenyu/RT-DETR, ``_reset_parameters``).

    transformers expects that weights are loaded: it initialises them as for a language model, and the scales of
    BatchNorm around 0, not 1. Its initialisation of sampling offsets and of attention over samples equals the authors'
    and is kept.
    """
    same = ("sampling_offsets", "attention_weights", "value_proj", "output_proj")
    for name, module in detr.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.BatchNorm2d)) and not any(part in name for part in same):
            module.reset_parameters()
    model = detr.model
    for head in (model.enc_bbox_head, *model.decoder.bbox_embed):
        nn.init.zeros_(head.layers[-1].weight)
        nn.init.zeros_(head.layers[-1].bias)
    for head in (model.enc_score_head, *model.decoder.class_embed):
        nn.init.constant_(head.bias, -math.log((1 - _PRIOR) / _PRIOR))
    levels = [level[0] for level in model.decoder_input_proj]
    for layer in (model.enc_output[0], *model.decoder.query_pos_head.layers, *levels):
        nn.init.xavier_uniform_(layer.weight)


class _ComputedMaps(nn.Module):
    """Replaces transformers' backbone; returns maps that were computed before."""

    maps: list[torch.Tensor] | None = None

    def forward(self, images: torch.Tensor, mask: torch.Tensor) -> list[tuple[torch.Tensor, None]]:
        """Return ``maps``, ``[B, C, h, w]`` each, in the pairs that transformers expects; ignore the arguments."""
        return [(level, None) for level in self.maps or ()]
