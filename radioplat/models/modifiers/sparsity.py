"""Weights that are zero and stay so: which layers have them, and what keeps training from moving them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn.utils import parametrize


@dataclass(frozen=True)
class Sparsity:
    """Kept as JSON in the checkpoint; the masks themselves are the exact zeros of the weights.

    Attributes:
        pattern: ``unstructured`` or ``2:4``.
        layers: names in the backbone of the layers whose zeros are held.
    """

    pattern: str
    layers: list[str]


def hold_zeros(backbone: nn.Module, how: Sparsity) -> int:
    """Give what is zero now no gradient from here on; how many numbers that are.

    Without a gradient and without moments no optimizer here moves a zero, weight decay and averages keep it one, and so
    does every ZeRO stage, for the gradient is masked before DeepSpeed sees it. To be called once weights are loaded and
    before they are cut up.
    """
    count = 0
    for name in how.layers:
        weight = own_weight(backbone.get_submodule(name))
        zeros = weight.detach() == 0
        count += int(zeros.sum())
        if weight.requires_grad:
            weight.register_hook(partial(_without, zeros))
    return count


def own_weight(layer: nn.Module) -> nn.Parameter:
    """The matrix that the optimizer moves; of a reparametrized layer the one under its scale."""
    return layer.parametrizations.weight.original if parametrize.is_parametrized(layer, "weight") else layer.weight


def _without(zeros: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.masked_fill(zeros, 0)
