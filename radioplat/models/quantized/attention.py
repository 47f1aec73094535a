"""Quantizers on the two products of attention: queries, keys, values, and the weights that softmax gives.

TensorRT fuses the whole of attention into one INT8 or FP8 kernel only if both operands of both products are outputs of
DequantizeLinear. Blocks keep their code: their call of ``scaled_dot_product_attention`` is replaced while they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import Quantizer
from radioplat.models.quantized.run_in_mode import run_in_mode

NAME = "attention_quantizers"
OPERANDS = ("query", "key", "value", "weights")


def quantize_attention(block: nn.Module, format: NumberFormat | str) -> None:
    """Round the operands of the attention that the forward of ``block`` calls, in place."""
    run_in_mode(block, _Rounding)
    block.add_module(NAME, nn.ModuleDict({operand: Quantizer(format) for operand in OPERANDS}))


def is_attention(func: Callable) -> bool:
    """Return whether a call is torch's fused attention."""
    return func is F.scaled_dot_product_attention


class _Rounding(TorchFunctionMode):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._quantizers = block.get_submodule(NAME)

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        """Call ``func``, or compute attention with rounded operands."""
        if is_attention(func):
            return self._attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Compute ``softmax(query key^T scale + mask) value`` with rounded operands.

        Raises:
            NotImplementedError: causal or grouped attention, which no vision backbone here has.
        """
        if is_causal or enable_gqa:
            raise NotImplementedError("attention that is causal or grouped is not quantized")
        rounded = self._quantizers
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        scores = (rounded["query"](query) @ rounded["key"](key).transpose(-2, -1)) * factor
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attn_mask, float("-inf"))
            else:
                scores = scores + attn_mask
        weights = F.dropout(scores.softmax(-1), dropout_p) if dropout_p else scores.softmax(-1)
        return rounded["weights"](weights) @ rounded["value"](value)
