"""Operands of additions that are rounded, by their number in the forward of a block of any class."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from radioplat.compression.quantization.find_additions import find_additions
from radioplat.models.quantized.additions import NAME, quantize_additions
from radioplat.models.quantized.architecture import LayerFormats
from radioplat.models.quantized.quantizer import quantizers


class Block(nn.Module):
    """Two convolutions with a branch, in the spelling given, and an addition that no activation reads."""

    def __init__(self, spelling: str = "+", activated: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.act = nn.ReLU(inplace=True) if activated else nn.GELU()
        self.spelling = spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(self.act(self.a(x)))
        if self.spelling == "+":
            y = y + x
        elif self.spelling == "+=":
            y += x
        elif self.spelling == "add":
            y = torch.add(x, y)
        else:
            y = x.add(y)
        return self.act(y) + 1


class Net(nn.Module):
    """Two blocks, the second one in the first one's shape."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"one": Block(**options), "two": Block(**options)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model["two"](self.model["one"](x))


def places(net: nn.Module, layers: list[str]) -> dict[str, dict[str, str]]:
    every = {name: LayerFormats() for name in layers}
    return find_additions(net, every, lambda name: False, lambda: net(torch.randn(2, 4, 3, 3)))


@pytest.mark.parametrize(("spelling", "place"), [("+", "0_1"), ("+=", "0_1"), ("add", "0_0"), (".add", "0_0")])
def test_the_other_branch_of_a_quantized_convolution_is_found(spelling, place):
    net = Net(spelling=spelling)
    found = places(net, ["model.one.b", "model.two.b"])
    assert found == {"model.one": {place: "int8"}, "model.two": {place: "int8"}}
    assert places(net, ["model.two.a", "model.two.b"]) == {"model.two": {place: "int8"}}
    assert places(net, ["model.one.a"]) == {}, "the convolution that is added is not quantized"


def test_a_stream_without_an_activation_stays_float():
    assert places(Net(activated=False), ["model.one.b"]) == {}


@pytest.mark.parametrize("spelling", ["+", "+=", "add", ".add"])
def test_what_is_rounded_is_that_operand_alone(spelling):
    torch.manual_seed(0)
    block, x = Block(spelling), torch.randn(2, 4, 3, 3)
    plain = copy.deepcopy(block)
    quantize_additions(block, {"0_1" if spelling.startswith("+") else "0_0": "int8"})
    (name,) = quantizers(block)
    assert name.startswith(f"{NAME}.0_") and isinstance(block, Block)
    rounder = quantizers(block)[name]
    rounder.set_amax(x.abs().max())
    y = plain.b(plain.act(plain.a(x)))
    wanted = torch.relu(y + rounder(x)) + 1
    torch.testing.assert_close(block(x), wanted)
    torch.testing.assert_close(copy.deepcopy(block)(x), wanted)
    rounder.enabled = False
    torch.testing.assert_close(block(x), plain(x))


def test_it_is_traced_and_trained():
    block, x = Block(), torch.randn(2, 4, 3, 3)
    quantize_additions(block, {"0_1": "int8"})
    program = torch.export.export(block, (x,), strict=False)
    calls = [n for n in program.graph.nodes if n.target is torch.ops.radioplat.fake_quantize.default]
    assert len(calls) == 1
    block(x).sum().backward()
    assert block.get_submodule(NAME)["0_1"].scale.grad is not None
