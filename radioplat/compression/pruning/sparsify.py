"""Unstructured and 2:4 sparsity: set the smallest weights to zero, anywhere or two of every four inputs."""

from __future__ import annotations

import copy
import fnmatch
from dataclasses import dataclass, replace

import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.modifiers.sparsity import Sparsity
from radioplat.models.student.student import Student
from radioplat.spec.schema.prune import PruneScope, SparsityConfig, SparsityPattern

INPUTS, NONZERO = 4, 2  # sparse tensor cores multiply two of four along the inputs (Mishra et al. 2021)


@dataclass(frozen=True)
class Sparsified:
    """Result of :func:`sparsify`.

    Attributes:
        layers: number of layers with zeros.
        zeros, weights: number of zeros and of all weights in the matrices of these layers.
        left_out: names of the layers whose number of inputs is not a multiple of four.
    """

    pattern: str
    layers: int
    zeros: int
    weights: int
    left_out: list[str]


@torch.no_grad()
def sparsify(student: Student, config: SparsityConfig) -> tuple[Student, Sparsified]:
    """Return a copy of ``student`` whose backbone has zeros for the smallest weights of linear layers and convolutions.

    Biases, normalization layers and heads do not change. Weights that are 0 already count as the smallest.

    Raises:
        SpecError: a pattern names no layer, or no layer is left.
    """
    assert config.type is not None
    small = copy.deepcopy(student)
    layers, left_out = _layers(small.backbone, config), []
    if config.type is SparsityPattern.two_of_four:
        left_out = [name for name, layer in layers.items() if layer.weight.shape[1] % INPUTS]
        layers = {name: layer for name, layer in layers.items() if name not in left_out}
    if not layers:
        why = f"the inputs of {', '.join(left_out[:3])} are not a multiple of 4" if left_out else "all are excluded"
        raise SpecError(f"no layer of this backbone can have zeros: {why}", where="prune.sparsity")
    if config.type is SparsityPattern.two_of_four:
        masks = {name: two_of_four(layer.weight) for name, layer in layers.items()}
    else:
        masks = _smallest({name: layer.weight.abs() for name, layer in layers.items()}, config)
    for name, mask in masks.items():
        layers[name].weight.masked_fill_(mask, 0)
    small.architecture = replace(small.architecture, sparsity=Sparsity(config.type.value, list(layers)))
    zeros = sum(int((layer.weight == 0).sum()) for layer in layers.values())
    weights = sum(layer.weight.numel() for layer in layers.values())
    return small, Sparsified(config.type.value, len(layers), zeros, weights, left_out)


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """Return the mask, bool, of the two smallest of every four consecutive inputs of ``weight`` ``[out, in, ...]``."""
    last = weight.abs().movedim(1, -1)
    fours = last.reshape(*last.shape[:-1], -1, INPUTS)
    smallest = fours.argsort(dim=-1, stable=True)[..., : INPUTS - NONZERO]
    return torch.zeros_like(fours, dtype=torch.bool).scatter_(-1, smallest, True).reshape(last.shape).movedim(-1, 1)


def _layers(backbone: nn.Module, config: SparsityConfig) -> dict[str, nn.Module]:
    names = {name: m for name, m in backbone.named_modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)}
    for i, pattern in enumerate(config.exclude):
        if not fnmatch.filter(names, pattern):
            raise SpecError(f"no layer of the backbone is called {pattern!r}", where=f"prune.sparsity.exclude[{i}]")
    return {n: m for n, m in names.items() if not any(fnmatch.fnmatchcase(n, p) for p in config.exclude)}


def _smallest(sizes: dict[str, torch.Tensor], config: SparsityConfig) -> dict[str, torch.Tensor]:
    if config.scope is PruneScope.layer:
        return {name: _smallest_of(size.flatten(), config.amount).view_as(size) for name, size in sizes.items()}
    every = _smallest_of(torch.cat([size.flatten() for size in sizes.values()]), config.amount)
    pieces = every.split([size.numel() for size in sizes.values()])
    return {name: piece.view_as(size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)}


def _smallest_of(sizes: torch.Tensor, amount: float) -> torch.Tensor:
    """Return the mask, bool, of the share ``amount`` (rounded down) of the smallest of ``sizes`` ``[n]``."""
    smallest = sizes.argsort(stable=True)[: int(amount * len(sizes))]
    return torch.zeros_like(sizes, dtype=torch.bool).index_fill_(0, smallest, True)
