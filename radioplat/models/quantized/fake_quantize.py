"""Fake quantization: round a float tensor to the values of an integer or 8-bit float format, and keep it in float.

``y = s q(x / s)``, q rounds to the nearest value of the format (ties to even) and clips to its range. It is an
custom operator, which ``torch.export`` keeps as one node and the ONNX export as QuantizeLinear and DequantizeLinear.

Gradients: for x, 1 inside the range and 0 beyond it (the clipped straight-through estimator); for s, ``q(v) - v``
inside and the bound beyond it, v = x / s, times ``1 / sqrt(N Q)`` with N the values that share a scale and Q the
highest value (LSQ, Esser et al. 2020, equations 3 and 5; N counts the images of a batch, too). Integers go to -Q - 1
(-128 in INT8), as in ONNX's QuantizeLinear.
"""

from __future__ import annotations

from enum import Enum

import torch

from radioplat.spec.resolved.number_formats import DATA_TYPES, DataType


class NumberFormat(str, Enum):
    """Number formats to round to. Their zero is 0."""

    int8 = "int8"
    int4 = "int4"
    fp8 = "fp8"

    @property
    def row(self) -> DataType:
        """Entry of the table of number formats."""
        return DATA_TYPES[self.value]

    @property
    def highest(self) -> float:
        """The largest value of the format."""
        return self.row.highest

    @property
    def lowest(self) -> float:
        """The smallest value of the format: -128 in INT8, -448 in FP8."""
        return self.row.lowest

    @property
    def bits(self) -> int:
        """Bits of one value."""
        return self.row.bits


# Minimum scale: smaller ones are replaced by it, so that quotients stay finite for any value of a trained scale.
LEAST_SCALE = 1e-12


def fake_quantize(x: torch.Tensor, scale: torch.Tensor, axis: int, format: NumberFormat | str) -> torch.Tensor:
    """Round ``x`` to ``format``; computed in fp32, returned in the dtype of ``x``.

    Args:
        scale: the value of 1 in the format: one number, one for each index of ``axis``, or, of a matrix ``[n, m]``,
            ``[n, blocks]``: one for each of as many equal parts of every row. Its sign is ignored.
        axis: -1 for one scale.

    Raises:
        ValueError: no such format, or a wrong number of scales.
    """
    count = 1 if axis == -1 else x.shape[axis]
    if scale.ndim == 2:
        if x.ndim != 2 or scale.shape[0] != x.shape[0] or x.shape[1] % scale.shape[1]:
            raise ValueError(f"scales {list(scale.shape)} for a tensor {list(x.shape)}")
    elif scale.numel() != count:
        raise ValueError(f"{scale.numel()} scales for {count} along axis {axis}")
    return torch.ops.radioplat.fake_quantize.default(x, scale, axis, NumberFormat(format).value)


def round_to(v: torch.Tensor, format: NumberFormat) -> torch.Tensor:
    """Clip fp32 ``v`` to ``format`` and round it to the nearest value."""
    clipped = v.clamp(format.lowest, format.highest)
    return clipped.to(getattr(torch, format.row.torch_type)).float() if format.row.is_float else clipped.round()


def effective_scale(scale: torch.Tensor) -> torch.Tensor:
    """Return the positive fp32 scale that the operator divides by."""
    return scale.float().abs().clamp_min(LEAST_SCALE)


@torch.library.custom_op(
    "radioplat::fake_quantize", mutates_args=(), schema="(Tensor x, Tensor scale, int axis, str format) -> Tensor"
)
def _operator(x: torch.Tensor, scale: torch.Tensor, axis: int, format: str) -> torch.Tensor:
    step = _along(effective_scale(scale), x, axis)
    return (round_to(x.float() / step, NumberFormat(format)) * step).to(x.dtype)


@_operator.register_fake
def _(x: torch.Tensor, scale: torch.Tensor, axis: int, format: str) -> torch.Tensor:
    return torch.empty_like(x)


def _remember(ctx, inputs: tuple, output: torch.Tensor) -> None:
    x, scale, ctx.axis, ctx.format = inputs
    ctx.save_for_backward(x, scale)


def _backward(ctx, grad: torch.Tensor) -> tuple:
    x, scale = ctx.saved_tensors
    format = NumberFormat(ctx.format)
    v = x.float() / _along(effective_scale(scale), x, ctx.axis)
    inside = (v >= format.lowest) & (v <= format.highest)
    grad = grad.float()
    grad_x = (grad * inside).to(x.dtype) if ctx.needs_input_grad[0] else None
    grad_scale = None
    if ctx.needs_input_grad[1]:
        q = round_to(v, format)
        each = grad * torch.where(inside, q - v, q)
        if scale.ndim == 2:
            total = each.unflatten(1, (scale.shape[1], -1)).sum(-1)
        elif ctx.axis != -1:
            total = each.sum([d for d in range(x.ndim) if d != ctx.axis])
        else:
            total = each.sum()
        factor = (x.numel() / scale.numel() * format.highest) ** -0.5
        sign = torch.where(scale < 0, -1.0, 1.0)
        grad_scale = (total.reshape(scale.shape) * factor * sign).to(scale.dtype)
    return grad_x, grad_scale, None, None


_operator.register_autograd(_backward, setup_context=_remember)


def _along(scale: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Reshape ``scale`` so that it broadcasts over ``x``."""
    if scale.ndim == 2:
        return scale.repeat_interleave(x.shape[1] // scale.shape[1], 1)
    shape = [1] * x.ndim
    if axis != -1:
        shape[axis] = -1
    return scale.reshape(shape)
