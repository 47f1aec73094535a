"""Bytes that a forward pass keeps for its backward pass, counted without computing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def activation_bytes(model: nn.Module, run: Callable[[torch.Tensor], Any], size: int, dtype: torch.dtype) -> int:
    """Return the bytes that autograd saves in a forward pass of one image, without those of parameters.

    Attention is taken to be a fused kernel, which keeps no map of all pairs of tokens. What losses save, what is
    recomputed with gradient checkpointing, and memory for intermediate results are not in it.

    Args:
        model: in training mode, on any device, also ``meta``; its parameters lose their values.
        run: a forward pass of it on images ``[1, 3, size, size]``.
        dtype: of parameters and images.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        _forget_values(model, dtype)
        own = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
        saved: dict[int, torch.Tensor] = {}  # by storage, so that views of one count once

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()._cdata
            if storage not in own:
                saved[storage] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            run(torch.zeros(1, 3, size, size, dtype=dtype))
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def _forget_values(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace parameters and buffers by tensors on the CPU that have a shape and no memory."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = torch.empty(parameter.shape, dtype=dtype)
                module._parameters[name] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                kind = dtype if buffer.is_floating_point() else buffer.dtype
                module._buffers[name] = torch.empty(buffer.shape, dtype=kind)
