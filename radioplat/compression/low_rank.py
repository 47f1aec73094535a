"""Low-rank decomposition: replace a matrix by the product of two narrow ones, from its singular values."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.modifiers.low_rank import pair, splittable
from radioplat.models.student.student import Student
from radioplat.spec.schema.low_rank import LowRankConfig


@dataclass(frozen=True)
class Decomposed:
    """Layers that :func:`decompose` replaced.

    Attributes:
        ranks: rank of each replaced layer, by name.
        energies: share of the squared singular values that the rank contains, by name.
        whole: names of the layers that were not replaced, because they would not get smaller.
    """

    ranks: dict[str, int]
    energies: dict[str, float]
    whole: list[str]


@torch.no_grad()
def decompose(student: Student, config: LowRankConfig) -> tuple[Student, Decomposed]:
    """Return a copy of ``student`` with two consecutive layers in place of each backbone layer that gets smaller by it.

    No other matrix of that rank is closer in the Frobenius norm (Eckart and Young 1936).

    Raises:
        SpecError: a pattern names no layer, no layer gets smaller, the student is quantized, or the backbone
            uses a layer other than by calling it.
    """
    if student.architecture.quantized is not None:
        hint = "Take the checkpoint from before quantization: low_rank first, quantize second."
        raise SpecError("a quantized student cannot be decomposed", where="low_rank.checkpoint", hint=hint)
    small = copy.deepcopy(student).eval()
    before = small.architecture.low_rank
    ranks: dict[str, int] = {}
    energies: dict[str, float] = {}
    whole: list[str] = []
    for name, layer in _layers(small.backbone, config, tuple(f"{done}." for done in before)).items():
        matrix = layer.weight.flatten(1)
        left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        rank = rank_for(values, matrix.shape, config)
        if rank * sum(matrix.shape) >= matrix.numel():
            whole.append(name)
            continue
        two, root = pair(layer, rank), values[:rank].sqrt()
        two[0].weight.copy_((root[:, None] * right[:rank]).view_as(two[0].weight))
        two[1].weight.copy_((left[:, :rank] * root).view_as(two[1].weight))
        if layer.bias is not None:
            two[1].bias.copy_(layer.bias)
        parent, _, leaf = name.rpartition(".")
        small.backbone.get_submodule(parent)._modules[leaf] = two
        ranks[name], energies[name] = rank, float(values[:rank].square().sum() / values.square().sum())
    if not ranks:
        why = f"none of the {len(whole)} selected layers would"
        hint = "Ask for less energy, a lower rank or ratio, or include other layers."
        raise SpecError(f"nothing gets smaller: {why}", where="low_rank", hint=hint)
    sparsity = small.architecture.sparsity
    if sparsity is not None:  # a product of dense factors has no fixed zeros
        sparse = [name for name in sparsity.layers if name not in ranks]
        sparsity = replace(sparsity, layers=sparse) if sparse else None
    small.architecture = replace(small.architecture, low_rank={**before, **ranks}, sparsity=sparsity)
    _check_runs(small)
    return small, Decomposed(ranks, energies, whole)


def rank_for(values: torch.Tensor, shape: Sequence[int], config: LowRankConfig) -> int:
    """Return the rank to approximate a matrix of ``shape`` by, at least 1, from its singular ``values``, descending."""
    if config.rank is not None:
        return min(config.rank, len(values))
    if config.ratio is not None:
        return max(1, int(config.ratio * shape[0] * shape[1] / (shape[0] + shape[1])))
    energy = values.square().cumsum(0)
    return min(len(values), int((energy < config.energy * energy[-1]).sum()) + 1)


def _layers(backbone: nn.Module, config: LowRankConfig, done: tuple[str, ...]) -> dict[str, nn.Linear | nn.Conv2d]:
    names = {n: m for n, m in backbone.named_modules() if splittable(m) and not n.startswith(done)}
    for field, patterns in (("include", config.include), ("exclude", config.exclude)):
        for i, pattern in enumerate(patterns):
            if not fnmatch.filter(names, pattern):
                message = f"no linear layer or 1x1 convolution of the backbone is called {pattern!r}"
                raise SpecError(message, where=f"low_rank.{field}[{i}]")

    def matching(patterns: list[str]) -> set[str]:
        return {name for pattern in patterns for name in fnmatch.filter(names, pattern)}

    selected = matching(config.include) - matching(config.exclude)
    return {name: layer for name, layer in names.items() if name in selected}


def _check_runs(student: Student) -> None:
    size = student.architecture.img_size
    try:
        student(torch.zeros(1, 3, size, size))
    except (AttributeError, RuntimeError, TypeError) as error:
        raise SpecError(
            f"{student.architecture.type} uses a layer other than by calling it: {error}",
            where="low_rank.include",
            hint='Name layers that it only calls: include: ["*.mlp.*"].',
        ) from error
