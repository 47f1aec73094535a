"""Linear layers and convolutions whose input and weight are rounded; their tensors keep their names.

A float layer becomes a quantized one in place, by changing its class: its tensors and hooks stay the same objects.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, pad_same
from timm.layers import Linear as TimmLinear
from torch import nn

from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import Quantizer


class QuantizedLinear(nn.Linear):
    """A linear layer over ``input_quantizer(x)`` and ``weight_quantizer(weight)``; either may be None."""

    input_quantizer: Quantizer | None
    weight_quantizer: Quantizer | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to the rounded input with the rounded weight."""
        return F.linear(_through(self.input_quantizer, x), _through(self.weight_quantizer, self.weight), self.bias)


class QuantizedConv2d(nn.Conv2d):
    """A convolution over ``input_quantizer(x)`` and ``weight_quantizer(weight)``; either may be None."""

    input_quantizer: Quantizer | None
    weight_quantizer: Quantizer | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the convolution to the rounded input with the rounded weight."""
        x, weight = _through(self.input_quantizer, x), _through(self.weight_quantizer, self.weight)
        return self._conv_forward(x, weight, self.bias)


class QuantizedConv2dSame(QuantizedConv2d, Conv2dSame):
    """The same for timm's convolution with TensorFlow's padding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the convolution as timm does, to rounded input and weight; padded zeros are exact in every format."""
        x, weight = _through(self.input_quantizer, x), _through(self.weight_quantizer, self.weight)
        padded = pad_same(x, list(weight.shape[-2:]), list(self.stride), list(self.dilation))
        return F.conv2d(padded, weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


_QUANTIZED: dict[type, type] = {
    nn.Linear: QuantizedLinear,
    TimmLinear: QuantizedLinear,
    nn.Conv2d: QuantizedConv2d,
    Conv2dSame: QuantizedConv2dSame,
}


def can_be_quantized(layer: nn.Module) -> bool:
    """Return whether there is a quantized class for ``layer``; subclasses that compute their weights have none."""
    return type(layer) in _QUANTIZED


def quantize_layer(
    layer: nn.Module,
    weights: NumberFormat | str | None,
    activations: NumberFormat | str | None,
    per_channel: bool = True,
    block: int | None = None,
) -> None:
    """Make ``layer`` a quantized one in place, with scales of 1 until they are calibrated or loaded.

    Args:
        per_channel: whether the weight has a scale for each output channel, or one for all.
        block: for a linear layer: how many inputs of an output channel share a scale; None for all of them.

    Raises:
        TypeError: there is no quantized class for it.
    """
    if not can_be_quantized(layer):
        raise TypeError(f"no quantized layer stands for {type(layer).__name__}")
    layer.__class__ = _QUANTIZED[type(layer)]
    layer.input_quantizer = None if activations is None else Quantizer(activations)
    channels = layer.weight.shape[0] if per_channel else None
    blocks = None if block is None else layer.weight.shape[1] // block
    layer.weight_quantizer = None if weights is None else Quantizer(weights, channels, blocks=blocks)


def _through(quantizer: Quantizer | None, x: torch.Tensor) -> torch.Tensor:
    return x if quantizer is None else quantizer(x)
