"""Blocks whose parallel branches are one convolution in evaluation (MobileOne, RepVGG, FastViT, RepViT), made that."""

from __future__ import annotations

import copy
from typing import Any

from timm.utils.model import reparameterize_model
from torch import nn

_DONE = "branches_fused"
PRUNED_WITH_THEM = "it was pruned with them; prune the student that it was made of again"


def fuse_branches(model: nn.Module) -> tuple[int, int]:
    """Replace the branches of timm's blocks by the convolution that they sum to, in place.

    The outputs in evaluation stay the same up to rounding. BatchNorm of a fused block is part of its convolution. A
    model whose branches were fused before stays as it is: some of timm's blocks (FastViT's) cannot be fused twice.

    Returns:
        The number of convolutions before and after.
    """
    before = count_convolutions(model)
    if any(getattr(module, _DONE, False) for module in model.modules()):
        return before, before
    reparameterize_model(model, inplace=True)
    setattr(model, _DONE, True)
    return before, count_convolutions(model)


def count_convolutions(module: nn.Module) -> int:
    """Return the number of two-dimensional convolutions of ``module``."""
    return sum(isinstance(child, nn.Conv2d) for child in module.modules())


def fusion_notes(before: int, after: int) -> list[str]:
    """Return the sentence for a report on a model that had ``before`` convolutions; none if it has as many."""
    if after >= before:
        return []
    return [f"branches of its blocks are one convolution each: {after} convolutions instead of {before}"]


def branch_notes(model: Any, why: str) -> list[str]:
    """Return the sentence for a report on a student or detector that keeps branches because of ``why``; none if it has
    none, or is quantized."""
    if model.architecture.quantizations:
        return []
    before, after = fuse_branches(copy.deepcopy(model))
    if after >= before:
        return []
    return [f"branches of its blocks stay, {before} convolutions instead of {after}: {why}"]
