"""A quantized student without its quantizers: what another toolkit is given to calibrate."""

from __future__ import annotations

import copy

from timm.layers import Conv2dSame
from torch import nn

from radioplat.models.quantized.layers import QuantizedConv2d, QuantizedConv2dSame, QuantizedLinear
from radioplat.models.quantized.quantizer import quantizers

_FLOAT: dict[type, type] = {QuantizedLinear: nn.Linear, QuantizedConv2d: nn.Conv2d, QuantizedConv2dSame: Conv2dSame}


def float_twin(student: nn.Module) -> nn.Module:
    """A copy whose quantized layers are plain ones with the same weights; other quantizers in it do nothing.

    Names of layers stay.
    """
    twin = copy.deepcopy(student)
    for layer in twin.modules():
        if type(layer) in _FLOAT:
            del layer.input_quantizer, layer.weight_quantizer
            layer.__class__ = _FLOAT[type(layer)]
    for quantizer in quantizers(twin).values():
        quantizer.enabled = False
    return twin
