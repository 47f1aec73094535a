"""Quantizers on the other branch of an addition that an engine fuses into a convolution, in blocks of any class.

TensorRT and OpenVINO compute ``convolution + branch (+ ReLU)`` in one INT8 kernel if the branch is quantized too. The
addition is found by its number among those of tensors of equal shape in the forward of a block, modules inside it
included, so the code of the block stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import Quantizer
from radioplat.models.quantized.run_in_mode import run_in_mode

NAME = "addition_quantizers"
_ADDITIONS = (
    torch.add,
    torch.Tensor.add,
    torch.Tensor.add_,
    torch.Tensor.__add__,
    torch.Tensor.__radd__,
    torch.Tensor.__iadd__,
)


def is_addition(func: Callable, args: tuple[Any, ...]) -> bool:
    """Return whether a call adds two maps or sequences of one shape."""
    if func not in _ADDITIONS or len(args) < 2 or not all(isinstance(each, torch.Tensor) for each in args[:2]):
        return False
    a, b = args[:2]
    return a.is_floating_point() and a.ndim >= 3 and a.shape == b.shape


def quantize_additions(block: nn.Module, places: Mapping[str, NumberFormat | str]) -> None:
    """Round operands of additions in the forward of ``block``, in place.

    Args:
        places: format by ``<number of the addition>_<number of the operand>``, both from 0.
    """
    run_in_mode(block, _Rounding)
    block.add_module(NAME, nn.ModuleDict({place: Quantizer(format) for place, format in places.items()}))


class _Rounding(TorchFunctionMode):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._quantizers, self._number = block.get_submodule(NAME), -1

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        """Call ``func``, with rounded operands if it is an addition that has quantizers."""
        if is_addition(func, args):
            self._number += 1
            places = [f"{self._number}_{i}" for i in range(2)]
            rounded = [
                self._quantizers[p](x) if p in self._quantizers else x for p, x in zip(places, args, strict=False)
            ]
            args = (*rounded, *args[2:])
        return func(*args, **(kwargs or {}))
