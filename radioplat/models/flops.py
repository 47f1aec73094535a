"""Operations of a model's forward pass, counted on the meta device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from radioplat.models.on_meta import on_meta


def forward_flops(run: Callable[[torch.Tensor], Any], size: int, device: str = "meta") -> int:
    """Return the operations of matrix products and convolutions; a multiplication and an addition are two.

    Args:
        run: a forward pass of images ``[1, 3, size, size]``, fp32.
        device: that of the model; on ``meta`` nothing is computed.
    """
    place = on_meta() if device == "meta" else contextlib.nullcontext()
    with place, torch.no_grad(), FlopCounterMode(display=False) as counter:
        run(torch.zeros(1, 3, size, size, device=device))
    return int(counter.get_total_flops())
