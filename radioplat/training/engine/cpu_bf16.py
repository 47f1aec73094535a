"""Emulate bf16 on a CPU without bf16 units: multiply in fp32 and round to bf16, as bf16 units do.

Matrix units (AMX, AVX512-BF16, tensor cores) take bf16 operands, accumulate in fp32 and round the result once.
Without them PyTorch falls back to scalar code, measured 15 times slower than fp32 for a small ViT on AVX2. Casting
the operands of each multiplication up and its result down gives the same rounding at fp32's speed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.teachers.base.teacher import has_native_bf16

_MULTIPLIES = {
    F.linear,
    F.conv2d,
    F.conv1d,
    F.scaled_dot_product_attention,
    torch.matmul,
    torch.Tensor.matmul,
    torch.bmm,
    torch.Tensor.__matmul__,
    torch.conv2d,
    torch.baddbmm,
    torch.addmm,
    torch.mm,
}


class CpuBf16(TorchFunctionMode):
    """While active, compute multiplications of bf16 CPU tensors in fp32 and round them to bf16; also in backward."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Intercept one call of a torch function."""
        kwargs = kwargs or {}
        if function not in _MULTIPLIES or not any(_is_bf16(a) for a in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        result = function(*map(_up, args), **{name: _up(value) for name, value in kwargs.items()})
        return result.to(torch.bfloat16)


def arithmetic(spec: Spec, device: torch.device) -> AbstractContextManager:
    """Return the context for forward: :class:`CpuBf16` for bf16 on a CPU without bf16 units, else a null context."""
    if precision_of(spec.train) is Precision.bf16 and device.type == "cpu" and not has_native_bf16(device):
        return CpuBf16()
    return nullcontext()


def _is_bf16(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16 and value.device.type == "cpu"


def _up(value):
    return value.float() if _is_bf16(value) else value
