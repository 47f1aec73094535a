"""Cost of a backbone: parameters, multiply-accumulates, latency."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """Cost of a backbone for one image.

    Attributes:
        params: number of parameters.
        macs: multiply-accumulates of matrix products and convolutions.
        latency: median seconds of its engine on this machine for one image; None if it was not measured.
    """

    params: int
    macs: int
    latency: float | None = None


def cost_of(backbone: nn.Module, img_size: int) -> Cost:
    """Count parameters and operations of ``backbone`` on an image of ``img_size`` pixels."""
    params = sum(p.numel() for p in backbone.parameters())
    shadow = copy.deepcopy(backbone).to("meta").eval().requires_grad_(False)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shadow(torch.empty(1, 3, img_size, img_size, device="meta"))
    return Cost(params, counter.get_total_flops() // 2)
