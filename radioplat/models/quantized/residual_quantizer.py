"""A quantizer on the identity branch of a residual block.

TensorRT fuses ``convolution + branch (+ ReLU)`` into one INT8 kernel only if the branch is quantized too. In a ResNet
block the identity passes through ``downsample``; an inverted residual (EfficientNet, MobileNet) adds it itself.
Blocks of transformers and of ConvNeXt add to a stream that stays float.
"""

from __future__ import annotations

import torch
from timm.models._efficientnet_blocks import (
    DepthwiseSeparableConv,
    EdgeResidual,
    InvertedResidual,
    UniversalInvertedResidual,
)
from timm.models.resnet import BasicBlock, Bottleneck
from torch import nn

from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import Quantizer

NAME = "residual_quantizer"


class _QuantizedSkip(nn.Module):
    """An inverted residual with ``has_skip`` off that adds the rounded input itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block of maps ``[B, C, h, w]`` plus their rounded values."""
        return self.drop_path(super().forward(x)) + self.residual_quantizer(x)


class QuantizedInvertedResidual(_QuantizedSkip, InvertedResidual):
    """See :func:`quantize_residual`."""


class QuantizedUniversalInvertedResidual(_QuantizedSkip, UniversalInvertedResidual):
    """See :func:`quantize_residual`."""


class QuantizedDepthwiseSeparableConv(_QuantizedSkip, DepthwiseSeparableConv):
    """See :func:`quantize_residual`."""


class QuantizedEdgeResidual(_QuantizedSkip, EdgeResidual):
    """See :func:`quantize_residual`."""


_SKIPS: dict[type, type] = {
    InvertedResidual: QuantizedInvertedResidual,
    UniversalInvertedResidual: QuantizedUniversalInvertedResidual,
    DepthwiseSeparableConv: QuantizedDepthwiseSeparableConv,
    EdgeResidual: QuantizedEdgeResidual,
}


def has_identity_branch(block: nn.Module) -> bool:
    """Return whether ``block`` adds an identity branch that TensorRT fuses into a convolution."""
    return type(block) in (BasicBlock, Bottleneck) or (type(block) in _SKIPS and block.has_skip)


def quantize_residual(block: nn.Module, format: NumberFormat | str) -> None:
    """Round the identity branch of ``block``, in place, by a new submodule (of it or of ``downsample``) called
    ``residual_quantizer``.

    Raises:
        TypeError: it has no such branch.
    """
    if not has_identity_branch(block):
        raise TypeError(f"{type(block).__name__} adds no identity branch")
    if type(block) in _SKIPS:
        block.__class__ = _SKIPS[type(block)]
        block.has_skip = False
        block.add_module(NAME, Quantizer(format))
    else:
        if block.downsample is None:
            block.downsample = nn.Sequential()
        block.downsample.add_module(NAME, Quantizer(format))
