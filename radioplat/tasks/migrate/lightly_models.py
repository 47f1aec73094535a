"""Names of LightlyTrain's models, as timm has them."""

from __future__ import annotations

import re
from typing import NamedTuple

from radioplat.spec.weights.address import timm_name

_SIZES = {"t": "tiny", "s": "small", "b": "base", "l": "large", "g": "giant", "h": "huge", "7b": "7b"}
_DINOV2 = re.compile(r"dinov2(?:_vit)?/vit([sblg])14(-noreg)?((?:[-_]\w+)*)")
_DINOV3 = re.compile(r"dinov3/vit(7b|[sblh])16(plus)?((?:-\w+)*)")
_DINOV3_CONVNEXT = re.compile(r"dinov3/convnext-(tiny|small|base|large)((?:-\w+)*)")
# Models of torchvision that timm has under the same name.
_TORCHVISION = re.compile(
    r"torchvision/(resnet(?:18|34|50|101|152)|resnext(?:50_32x4d|101_32x8d|101_64x4d)|wide_resnet(?:50|101)_2"
    r"|convnext_(?:tiny|small|base|large))"
)


class LightlyModel(NamedTuple):
    """A model.

    Attributes:
        type: for ``model.backbone.type``, with the tag of the weights where the name implies pretrained ones.
        pretrained: whether LightlyTrain reads pretrained weights for this name.
    """

    type: str
    pretrained: bool = False


def find_model(name: str) -> LightlyModel | None:
    """Return timm's name of a model of LightlyTrain; None if timm has no such model."""
    if name.startswith("timm/"):
        return LightlyModel(timm_name(name))
    if matched := _TORCHVISION.fullmatch(name):
        return LightlyModel(matched[1])
    if matched := _DINOV2.fullmatch(name):
        # The names of the first versions, vits14-pretrain, have no registers either.
        plain = bool(matched[2]) or "_vit/" in name or matched[3] in ("-pretrain", "_pretrain")
        return _tagged(f"vit_{_SIZES[matched[1]]}_patch14_{'' if plain else 'reg4_'}dinov2", "lvd142m", matched[3])
    if matched := _DINOV3.fullmatch(name):
        tag = "sat493m" if "sat" in matched[3] else "lvd1689m"
        return _tagged(f"vit_{_SIZES[matched[1]]}_{'plus_' if matched[2] else ''}patch16_dinov3", tag, matched[3])
    if matched := _DINOV3_CONVNEXT.fullmatch(name):
        return _tagged(f"convnext_{matched[1]}", "dinov3_lvd1689m", matched[2])
    return None


def _tagged(name: str, tag: str, end: str) -> LightlyModel:
    pretrained = "notpretrained" not in end
    return LightlyModel(f"{name}.{tag}" if pretrained else name, pretrained)
