"""LAMB with the norms of complete parameters, also if ZeRO has partitioned them over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from radioplat.common import collectives as ranks


@dataclass(frozen=True)
class Layout:
    """The pieces of parameters in a flat fp32 tensor of this rank.

    Attributes:
        count: number of parameters in the flat tensors of all ranks together; not all have a piece on this rank.
        pieces: (index of the parameter, first element in the flat tensor, number of elements).
    """

    count: int
    pieces: tuple[tuple[int, int, int], ...]


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (You et al. 2020, arXiv 1904.00962, algorithm 2), phi the identity, r bias-corrected.

    ``w -= lr * |w| / |u| * u`` with ``u = m / (sqrt(v) + eps) + weight_decay * w``; the norms are of complete
    parameters, and the ratio is 1 if a norm is 0. Groups with ``adapt: false`` are updated as by Adam, as in the
    authors' code for biases and norms.

    Attributes:
        layouts: set after ZeRO has flattened the parameters; a tensor without a layout is a complete parameter. With
            layouts the squared norms are summed over the ranks: every rank must step the same groups in the same order.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, adapt=adapt))
        self.layouts: dict[torch.Tensor, Layout] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every tensor that has a gradient; with layouts this is collective."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self._move(tensor, self._direction(tensor, group), group)

    def _direction(self, tensor: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        state, (beta1, beta2) = self.state[tensor], group["betas"]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(tensor), torch.zeros_like(tensor)
        state["step"] += 1
        steps = float(state["step"])
        first = state["exp_avg"].lerp_(tensor.grad, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(tensor.grad, tensor.grad, value=1 - beta2)
        scale = (second / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        return (first / (1 - beta1**steps)).div_(scale).add_(tensor, alpha=group["weight_decay"])

    def _move(self, tensor: torch.Tensor, update: torch.Tensor, group: dict[str, Any]) -> None:
        rate, layout = group["lr"], self.layouts.get(tensor)
        if not group["adapt"]:
            tensor.sub_(update, alpha=rate)
        elif layout is None:
            norms = torch.stack([torch.linalg.vector_norm(tensor), torch.linalg.vector_norm(update)])
            tensor.sub_(update.mul_(rate * _ratio(norms)))
        else:
            squares = torch.zeros(2, layout.count, device=tensor.device)
            for number, start, size in layout.pieces:
                for row, flat in enumerate((tensor, update)):
                    squares[row, number] = torch.linalg.vector_norm(flat.narrow(0, start, size)).square()
            ratios = _ratio(ranks.total(squares).sqrt())
            for number, start, size in layout.pieces:
                piece = update.narrow(0, start, size)
                tensor.narrow(0, start, size).sub_(piece.mul_(rate * ratios[number]))


def _ratio(norms: torch.Tensor) -> torch.Tensor:
    """Return the trust ratios |w| / |u|, ``[...]``, from both norms ``[2, ...]``; 1 if a norm is 0."""
    weight, update = norms
    return torch.where((weight > 0) & (update > 0), weight / update, torch.ones_like(weight))
