"""Blocks whose parallel branches are one convolution in evaluation (MobileOne, RepVGG, FastViT, RepViT), made that."""

from __future__ import annotations

import copy
from typing import Any

import torch
from timm.utils.model import reparameterize_model
from torch import nn

# Attributes of a model: whether its branches were fused, and the reason why they could not be.
_DONE, _KEPT = "branches_fused", "branches_kept"
# Largest change of an output by fusing, relative to its largest value.
TOLERANCE = 1e-5
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


def fuse_if_equal(backbone: nn.Module, images: torch.Tensor) -> None:
    """Fuse as :func:`fuse_branches` if the outputs on ``images`` stay the same; else keep the branches.

    Both are computed in float64, so that a difference is one of the weights. A branch with a tiny variance, or two
    branches that cancel, lose digits where they are added in fp32. :func:`branch_notes` has the reason.

    Args:
        backbone: returns :class:`~radioplat.models.features.Features`; of weights, not on the meta device.
        images: normalised, ``[B, 3, H, W]``.
    """
    fused = copy.deepcopy(backbone)
    try:
        fuse_branches(fused)
    except Exception as error:  # noqa: BLE001 - timm's blocks may raise any
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        setattr(backbone, _KEPT, f"timm cannot fuse them ({reason})")
        return
    if fused.state_dict().keys() != backbone.state_dict().keys():
        change = _largest_change(backbone, fused, images)
        if not change <= TOLERANCE:
            why = f"fused in fp32 they change an output by {change:.1g} of its largest value (at most {TOLERANCE:g})"
            setattr(backbone, _KEPT, why)
            return
    fuse_branches(backbone)


@torch.no_grad()
def _largest_change(before: nn.Module, after: nn.Module, images: torch.Tensor) -> float:
    """Return the largest difference of an output, relative to its largest value; NaN if one is not a number."""
    try:
        pair = [copy.deepcopy(each).eval().double()(images.double()) for each in (before, after)]
    except RuntimeError:  # of backbones with a type of their own in the forward
        pair = [copy.deepcopy(each).eval()(images) for each in (before, after)]
    worst = torch.zeros((), dtype=torch.float64)
    for name in ("summary", "spatial"):
        a, b = (getattr(features, name) for features in pair)
        if a is not None:
            change = (a - b).abs().max().double() / a.abs().max().double().clamp(min=1e-30)
            worst = torch.maximum(worst, change.cpu())  # keeps NaN
    return float(worst)


def count_convolutions(module: nn.Module) -> int:
    """Return the number of two-dimensional convolutions of ``module``."""
    return sum(isinstance(child, nn.Conv2d) for child in module.modules())


def fusion_notes(before: int, after: int) -> list[str]:
    """Return the sentence for a report on a model that had ``before`` convolutions; none if it has as many."""
    if after >= before:
        return []
    return [f"branches of its blocks are one convolution each: {after} convolutions instead of {before}"]


def kept_notes(model: nn.Module) -> list[str]:
    """Return the sentence for a report on a model whose branches :func:`fuse_if_equal` kept; none for others."""
    kept = [reason for module in model.modules() if (reason := getattr(module, _KEPT, ""))]
    return [f"branches of its blocks stay, {count_convolutions(model)} convolutions: {kept[0]}"] if kept else []


def branch_notes(model: Any, why: str) -> list[str]:
    """Return the sentence for a report on a student or detector that keeps branches because of ``why``, or because
    they cannot be fused; none if it has none, or is quantized."""
    if kept := kept_notes(model):
        return kept
    if model.architecture.quantizations:
        return []
    fused = copy.deepcopy(model)
    try:
        before, after = fuse_branches(fused)
    except Exception:  # noqa: BLE001 - timm's blocks may raise any
        return [f"branches of its blocks stay: {why}"]
    if after >= before:
        return []
    return [f"branches of its blocks stay, {before} convolutions instead of {after}: {why}"]
