"""Operations of a model's forward pass, counted on the meta device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from radioplat.models.on_meta import on_meta


def forward_flops(model: nn.Module, run: Callable[[torch.Tensor], Any], size: int, device: str = "meta") -> int:
    """Return the operations of matrix products and convolutions; a multiplication and an addition are two.

    Args:
        model: what is run; its parameters get no gradients from here on.
        run: a forward pass of images ``[1, 3, size, size]``, fp32.
        device: that of the model; on ``meta`` nothing is computed.
    """
    model.requires_grad_(False)  # the counter's hooks fail on views of parameters that get gradients
    place = on_meta() if device == "meta" else contextlib.nullcontext()
    with place, torch.no_grad(), FlopCounterMode(display=False) as counter:
        run(torch.zeros(1, 3, size, size, device=device))
    return int(counter.get_total_flops())
