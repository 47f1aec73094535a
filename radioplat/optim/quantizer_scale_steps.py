"""Update learned quantizer scales by relative steps under optimizers that normalize their gradients.

A scale is a range divided by 127: 1e-4 in one layer and 10 in another. LSQ (Esser et al. 2020, section 2.2) multiplies
the gradient by a factor that makes the ratio of step to value the same for scales and weights; this works with SGD.
Adam and LAMB divide by the gradient's magnitude, which cancels that factor: each step is about the learning rate,
whatever the scale, so at a rate of 1e-3 the first step could reduce a scale of 1e-3 to 0. Here the same step is applied
to log(s), ``s <- s * exp(step)``: Adam's direction is the same for log(s) as for s, since their gradients differ only
by the factor s. A positive scale stays positive.

The update is elementwise, so it does not depend on how ZeRO partitions the parameters.
"""

from __future__ import annotations

from typing import Any

import torch

RELATIVE = "relative"  # a key of optimizer parameter groups


def step_relatively(optimizer: torch.optim.Optimizer) -> None:
    """Register hooks on ``optimizer`` that apply the steps of groups with ``relative: true`` to the logarithm."""
    before: list[torch.Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        before[:] = [tensor.detach().clone() for tensor in _tensors(optimizer)]

    @torch.no_grad()
    def follow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for tensor, old in zip(_tensors(optimizer), before, strict=True):
            # ZeRO's padding after the last scale is 0 and stays 0.
            tensor.copy_(old * (tensor - old).exp())
        before.clear()

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(follow)


def _tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors with relative steps, in the order of the groups; read at each step, as ZeRO replaces them."""
    return [tensor for group in optimizer.param_groups if group.get(RELATIVE) for tensor in group["params"]]
