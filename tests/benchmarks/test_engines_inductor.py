"""The layers of `benchmarks.engines_inductor` compute what the fake-quantized layers of the student compute."""

from __future__ import annotations

import pytest
import torch

from benchmarks.engines_inductor import Fp8Linear, Int8Linear
from radioplat.models.quantized.layers import quantize_layer


@pytest.mark.parametrize(("format", "kind"), [("int8", Int8Linear), ("fp8", Fp8Linear)])
def test_a_layer_in_a_format_is_the_fake_quantized_one(format, kind):
    """To bf16's rounding of the output; values beyond the range are clipped alike."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 48), torch.randn(2, 20, 64).bfloat16()
    quantize_layer(layer, format, format)
    layer.input_quantizer.set_amax(x.abs().max() / 2)
    layer.weight_quantizer.set_amax(layer.weight.detach().abs().amax(1))
    with torch.no_grad():
        wanted, found = layer(x.float()), kind(layer)(x).float()
    assert found.shape == wanted.shape and (found - wanted).abs().max() < 2e-2 * wanted.abs().max()
    assert (wanted - torch.nn.functional.linear(x.float(), layer.weight, layer.bias)).abs().max() > 0.05  # it clips
