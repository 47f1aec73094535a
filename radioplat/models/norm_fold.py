"""Fold the transforms of targets into the last linear layers of a student's heads."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from radioplat.models.heads import HeadArchitecture, TeacherHead
from radioplat.models.target_space import MATRIX


def fold_head(head: TeacherHead, mean: bool = True) -> HeadArchitecture:
    """Fold ``head`` in place, and give the architecture that it has now.

    With z = A h + b from the last linear layer and raw = V z + mu: A' = V A and b' = V b + mu, in float64,
    rounded once.

    Args:
        mean: fold everything. False leaves a mean, and a single scale, to be applied in fp32 after the layers (in half
            precision a mean that is large beside the spread would swallow it) and folds only a matrix, which costs.
    """
    for kind in ("summary", "spatial"):
        layers = getattr(head, kind)
        if layers is None or not (mean or head.form(kind) == MATRIX):
            continue
        _fold(head, kind, last_linear(layers), mean)
    now = {f"{kind}_norm": head.form(kind) for kind in ("summary", "spatial") if getattr(head, kind) is not None}
    head.architecture = replace(head.architecture, **now)
    return head.architecture


def last_linear(layers: nn.Module) -> nn.Linear:
    """The linear layer that the output of ``layers`` comes from: the last one in it."""
    return [module for module in layers.modules() if isinstance(module, nn.Linear)][-1]


@torch.no_grad()
def _fold(head: TeacherHead, kind: str, linear: nn.Linear, mean: bool) -> None:
    centre = getattr(head, f"{kind}_mean").double()
    if head.form(kind) == MATRIX:
        inverse = getattr(head, f"{kind}_inverse").double()
    else:
        inverse = torch.diag(getattr(head, f"{kind}_scale").double().expand(len(centre)))
    if linear.bias is None:
        linear.bias = nn.Parameter(torch.zeros_like(linear.weight[:, 0]))
    # A head with pixel shuffle gives several positions at once, one after the other.
    for rows in torch.arange(linear.out_features, device=linear.weight.device).split(len(centre)):
        linear.weight[rows] = (inverse @ linear.weight[rows].double()).to(linear.weight)
        linear.bias[rows] = (inverse @ linear.bias[rows].double() + (centre if mean else 0)).to(linear.bias)
    head.hold(kind, len(centre))
    head.to(linear.weight.device)
    if not mean:
        head.set_space(kind, mean=centre)
