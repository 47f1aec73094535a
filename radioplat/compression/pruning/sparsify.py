"""Single weights made zero: the smallest ones, anywhere or two of every four inputs."""

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

INPUTS, STAY = 4, 2  # what sparse tensor cores multiply: two of four along the inputs (Mishra et al. 2021)


@dataclass(frozen=True)
class Sparsified:
    """What :func:`sparsify` did.

    Attributes:
        layers: how many have zeros now.
        zeros, weights: numbers in the matrices of those layers, that are zero and in all.
        left_out: names of the layers whose inputs are no multiple of four.
    """

    pattern: str
    layers: int
    zeros: int
    weights: int
    left_out: list[str]


@torch.no_grad()
def sparsify(student: Student, config: SparsityConfig) -> tuple[Student, Sparsified]:
    """A copy of ``student`` with the smallest weights of its backbone's linear layers and convolutions at zero.

    Biases, normalization layers and heads stay whole. What is zero already is among the smallest.

    Raises:
        SpecError: a pattern names no layer, or no layer is left.
    """
    assert config.type is not None
    small = copy.deepcopy(student)
    found, left_out = _layers(small.backbone, config), []
    if config.type is SparsityPattern.two_of_four:
        left_out = [name for name, layer in found.items() if layer.weight.shape[1] % INPUTS]
        found = {name: layer for name, layer in found.items() if name not in left_out}
    if not found:
        why = f"the inputs of {', '.join(left_out[:3])} are no multiple of 4" if left_out else "all are excluded"
        raise SpecError(f"no layer of this backbone can have zeros: {why}", where="prune.sparsity")
    if config.type is SparsityPattern.two_of_four:
        masks = {name: two_of_four(layer.weight) for name, layer in found.items()}
    else:
        masks = _smallest({name: layer.weight.abs() for name, layer in found.items()}, config)
    for name, mask in masks.items():
        found[name].weight.masked_fill_(mask, 0)
    small.architecture = replace(small.architecture, sparsity=Sparsity(config.type.value, list(found)))
    zeros = sum(int((layer.weight == 0).sum()) for layer in found.values())
    weights = sum(layer.weight.numel() for layer in found.values())
    return small, Sparsified(config.type.value, len(found), zeros, weights, left_out)


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """Which of ``weight`` ``[out, in, ...]`` go: of every four consecutive inputs the two of least size, bool."""
    last = weight.abs().movedim(1, -1)
    fours = last.reshape(*last.shape[:-1], -1, INPUTS)
    going = fours.argsort(dim=-1, stable=True)[..., : INPUTS - STAY]
    return torch.zeros_like(fours, dtype=torch.bool).scatter_(-1, going, True).reshape(last.shape).movedim(-1, 1)


def _layers(backbone: nn.Module, config: SparsityConfig) -> dict[str, nn.Module]:
    names = {name: m for name, m in backbone.named_modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)}
    for i, pattern in enumerate(config.exclude):
        if not fnmatch.filter(names, pattern):
            raise SpecError(f"no layer of the backbone is called {pattern!r}", where=f"prune.sparsity.exclude[{i}]")
    return {n: m for n, m in names.items() if not any(fnmatch.fnmatchcase(n, p) for p in config.exclude)}


def _smallest(sizes: dict[str, torch.Tensor], config: SparsityConfig) -> dict[str, torch.Tensor]:
    if config.scope is PruneScope.layer:
        return {name: _least(size.flatten(), config.amount).view_as(size) for name, size in sizes.items()}
    every = _least(torch.cat([size.flatten() for size in sizes.values()]), config.amount)
    pieces = every.split([size.numel() for size in sizes.values()])
    return {name: piece.view_as(size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)}


def _least(sizes: torch.Tensor, amount: float) -> torch.Tensor:
    """The share ``amount`` of least ``sizes`` ``[n]``, bool, rounded down."""
    going = sizes.argsort(stable=True)[: int(amount * len(sizes))]
    return torch.zeros_like(sizes, dtype=torch.bool).index_fill_(0, going, True)
