"""Sparse weights: which layers have zeros, and the gradient mask that keeps them zero while training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.utils import parametrize


@dataclass(frozen=True)
class Sparsity:
    """Sparse layers, kept as JSON in the checkpoint; the masks are the exact zeros of the weights.

    Attributes:
        pattern: ``unstructured`` or ``2:4``.
        layers: names in the backbone of the layers whose zeros stay.
    """

    pattern: str
    layers: list[str]


def apply_sparsity_mask(backbone: nn.Module, how: Sparsity) -> int:
    """Mask the gradient of all weights that are zero now; return how many there are.

    Without gradient and moments no optimizer here changes a zero, and weight decay and averages keep it zero, at every
    ZeRO stage, because the gradient is masked before DeepSpeed reads it. Call it once weights are loaded and before
    they are partitioned.
    """
    count = 0
    for name in how.layers:
        weight = own_weight(backbone.get_submodule(name))
        zeros = weight.detach() == 0
        count += int(zeros.sum())
        if weight.requires_grad:
            weight.register_hook(lambda gradient, zeros=zeros: gradient.masked_fill(zeros, 0))
    return count


def own_weight(layer: nn.Module) -> nn.Parameter:
    """Return the matrix that the optimizer updates; of a reparametrized layer, the one before the scale."""
    return layer.parametrizations.weight.original if parametrize.is_parametrized(layer, "weight") else layer.weight
