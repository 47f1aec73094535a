"""Learned scales of quantizers move in proportion to themselves under optimizers that normalise their gradients.

A scale is a range over 127: 1e-4 in one layer and 10 in the next. LSQ (Esser et al. 2020, section 2.2) makes the ratio
of step to value alike for scales and weights by a factor on the gradient; that serves SGD. Adam and LAMB divide by the
gradient's own size, so that factor is lost, and each step is about the learning rate, whatever the scale: at 1e-3 a
scale of 1e-3 would be gone at once. Here the same step is taken along log(s), ``s <- s * exp(step)``: Adam's direction
is the same for log(s) as for s, since their gradients differ by the factor s alone. A positive scale stays positive.

It is done element by element, so that it does not matter how ZeRO has cut the parameters up.
"""

from __future__ import annotations

from typing import Any

import torch

RELATIVE = "relative"  # key of a parameter group


def step_relatively(optimizer: torch.optim.Optimizer) -> None:
    """From now on groups of ``optimizer`` with ``relative: true`` take their steps along the logarithm."""
    before: list[torch.Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        before[:] = [tensor.detach().clone() for tensor in _tensors(optimizer)]

    @torch.no_grad()
    def follow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for tensor, old in zip(_tensors(optimizer), before, strict=True):
            # Padding that ZeRO puts behind the last scale is 0 and stays so.
            tensor.copy_(old * (tensor - old).exp())
        before.clear()

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(follow)


def _tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors with relative steps, in the order of the groups; read each time, as ZeRO replaces them."""
    return [tensor for group in optimizer.param_groups if group.get(RELATIVE) for tensor in group["params"]]
