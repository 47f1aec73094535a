"""Sizes of timm's architectures that TAO names and timm does not register.

Importing this module registers them with timm. ``mit_b0`` to ``mit_b5`` are SegFormer's encoders (Xie et al. 2021,
arXiv 2105.15203): timm's PVT v2 with narrower MLPs, whose tensors have the same names.
``vit_large_patch14_dinov2_swiglu`` is DINOv2's ViT-L with the kind of MLP that its ViT-g has. ``gcvit_large``,
``gcvit_base_384`` and ``gcvit_large_384`` follow GC ViT (Hatamizadeh et al. 2023, arXiv 2206.09959),
``efficientvit_l0`` follows EfficientViT (Cai et al. 2023, arXiv 2205.14756).
"""

from __future__ import annotations

from typing import Any

from timm.layers import SwiGLUPacked
from timm.models import VisionTransformer, build_model_with_cfg, register_model
from timm.models._registry import generate_default_cfgs
from timm.models.efficientvit_mit import EfficientVitLarge
from timm.models.gcvit import GlobalContextVit
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from torch import nn

_IMAGENET: dict[str, Any] = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_MIT = dict(num_heads=(1, 2, 5, 8), sr_ratios=(8, 4, 2, 1), mlp_ratios=(4, 4, 4, 4))
_MIT_WIDTHS = (64, 128, 320, 512)
_SWIGLU: dict[str, Any] = dict(
    **dict(patch_size=14, embed_dim=1024, depth=24, num_heads=16, init_values=1e-5, dynamic_img_size=True),
    **dict(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, mlp_ratio=5472 / 1024),
)
_GC: dict[str, Any] = dict(depths=(3, 4, 19, 5), mlp_ratio=2, layer_scale=1e-5)
_GC_BASE, _GC_LARGE = dict(embed_dim=128, num_heads=(4, 8, 16, 32)), dict(embed_dim=192, num_heads=(6, 12, 24, 48))
# Name -> class, its arguments, and the side in pixels of the images that it is built for.
_MODELS: dict[str, tuple[type[nn.Module], dict[str, Any], int]] = {
    "mit_b0": (PyramidVisionTransformerV2, dict(_MIT, depths=(2, 2, 2, 2), embed_dims=(32, 64, 160, 256)), 224),
    "mit_b1": (PyramidVisionTransformerV2, dict(_MIT, depths=(2, 2, 2, 2), embed_dims=_MIT_WIDTHS), 224),
    "mit_b2": (PyramidVisionTransformerV2, dict(_MIT, depths=(3, 4, 6, 3), embed_dims=_MIT_WIDTHS), 224),
    "mit_b3": (PyramidVisionTransformerV2, dict(_MIT, depths=(3, 4, 18, 3), embed_dims=_MIT_WIDTHS), 224),
    "mit_b4": (PyramidVisionTransformerV2, dict(_MIT, depths=(3, 8, 27, 3), embed_dims=_MIT_WIDTHS), 224),
    "mit_b5": (PyramidVisionTransformerV2, dict(_MIT, depths=(3, 6, 40, 3), embed_dims=_MIT_WIDTHS), 224),
    "vit_large_patch14_dinov2_swiglu": (VisionTransformer, dict(_SWIGLU, img_size=518), 518),
    "vit_large_patch14_dinov2_swiglu_legacy": (VisionTransformer, dict(_SWIGLU, img_size=224), 224),
    "gcvit_large": (GlobalContextVit, {**_GC, **_GC_LARGE}, 224),
    "gcvit_base_384": (GlobalContextVit, {**_GC, **_GC_BASE, "img_size": 384}, 384),
    "gcvit_large_384": (GlobalContextVit, {**_GC, **_GC_LARGE, "img_size": 384}, 384),
    "efficientvit_l0": (
        EfficientVitLarge,
        dict(
            **dict(widths=(32, 64, 128, 256, 512), depths=(1, 1, 1, 4, 4), head_dim=32, head_widths=(3072, 3200)),
            norm_eps=1e-5,
        ),
        224,
    ),
}
# Name of the classifier, and of the first convolution, by class.
_ENDS: dict[type[nn.Module], tuple[str, str]] = {
    PyramidVisionTransformerV2: ("head", "patch_embed.proj"),
    VisionTransformer: ("head", "patch_embed.proj"),
    GlobalContextVit: ("head.fc", "stem.conv1"),
    EfficientVitLarge: ("head.classifier.4", "stem.in_conv.conv"),
}
default_cfgs = generate_default_cfgs(
    {
        name: dict(
            url="",
            num_classes=1000,
            input_size=(3, size, size),
            **_IMAGENET,
            classifier=_ENDS[model][0],
            first_conv=_ENDS[model][1],
            fixed_input_size=model is GlobalContextVit,
        )
        for name, (model, _, size) in _MODELS.items()
    }
)


def _register(name: str) -> None:
    model, arguments, _ = _MODELS[name]

    def build(**kwargs: Any) -> nn.Module:
        return build_model_with_cfg(model, name, kwargs.pop("pretrained", False), **{**arguments, **kwargs})

    build.__name__ = name
    register_model(build)


for _name in _MODELS:
    _register(_name)
