"""NV-CLIP's image towers, by TAO's names: ``vit_l_14_siglip_clipa_224`` and ``_336``, ``vit_h_14_siglip_clipa_224``.

Importing this module registers them with timm. They are ViTs with a class token that is not pooled, fixed sine and
cosine positions, no norm before the blocks, and a norm after the mean of the patches (CLIPA, Li et al. 2023,
arXiv 2305.07017). The classifier, if any, is the projection into the embedding space shared with text.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import build_sincos2d_pos_embed
from timm.models import VisionTransformer, build_model_with_cfg, register_model, vision_transformer
from timm.models._registry import generate_default_cfgs
from torch import nn

_SIZES: dict[str, dict[str, Any]] = {
    "vit_l_14_siglip_clipa_224": dict(img_size=224, embed_dim=1024, depth=24, num_classes=768),
    "vit_l_14_siglip_clipa_336": dict(img_size=336, embed_dim=1024, depth=24, num_classes=768),
    "vit_h_14_siglip_clipa_224": dict(img_size=224, embed_dim=1280, depth=32, num_classes=1024),
}


class NvClip(VisionTransformer):
    """timm's ViT without a bias in its patch embedding, and with positions that are not trained."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch_embed.proj.register_parameter("bias", None)
        table = build_sincos2d_pos_embed(list(self.patch_embed.grid_size), self.embed_dim, interleave_sin_cos=True)
        table = table.roll(self.embed_dim // 2, dims=1)  # columns before rows, as in OpenCLIP
        with torch.no_grad():
            self.pos_embed.copy_(torch.cat([torch.zeros_like(table[:1]), table]))
        self.pos_embed.requires_grad_(False)


def checkpoint_filter_fn(tensors: dict[str, torch.Tensor], model: NvClip) -> dict[str, torch.Tensor]:
    """Rename OpenCLIP's tensors to timm's names; the last norm is applied after the mean."""
    renamed = vision_transformer.checkpoint_filter_fn(tensors, model)
    return {k.replace("norm.", "fc_norm.", 1) if k.startswith("norm.") else k: v for k, v in renamed.items()}


default_cfgs = generate_default_cfgs(
    {
        name: dict(
            url="",
            num_classes=sizes["num_classes"],
            input_size=(3, sizes["img_size"], sizes["img_size"]),
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            first_conv="patch_embed.proj",
            classifier="head",
        )
        for name, sizes in _SIZES.items()
    }
)


def _register(name: str) -> None:
    def build(**kwargs: Any) -> NvClip:
        usual: dict[str, Any] = dict(patch_size=14, num_heads=16, global_pool="avg", dynamic_img_size=True)
        usual |= dict(norm_layer=partial(nn.LayerNorm, eps=1e-5), **_SIZES[name])
        return build_model_with_cfg(NvClip, name, kwargs.pop("pretrained", False), **{**usual, **kwargs})

    build.__name__ = name
    register_model(build)


for _name in _SIZES:
    _register(_name)
