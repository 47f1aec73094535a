"""Blocks whose parallel branches are one convolution in evaluation (MobileOne, RepVGG, FastViT, RepViT), made that."""

from __future__ import annotations

from timm.utils.model import reparameterize_model
from torch import nn


def fuse_branches(model: nn.Module) -> tuple[int, int]:
    """Replace the branches of timm's blocks by the convolution that they sum to, in place.

    The outputs in evaluation stay the same up to rounding. BatchNorm of a fused block is part of its convolution.

    Returns:
        The number of convolutions before and after.
    """
    before = _convolutions(model)
    reparameterize_model(model, inplace=True)
    return before, _convolutions(model)


def _convolutions(module: nn.Module) -> int:
    return sum(isinstance(child, nn.Conv2d) for child in module.modules())
