"""Fold target normalization into the last linear layers of a student's heads, and unfold it.

With z = A h + b from the last linear layer and raw = V z + mu: A' = V A and b' = V b + mu return raw features directly;
A' = V^-1 A and b' = V^-1 (b - mu) is the inverse. In float64, rounded once.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from radioplat.models.heads import HeadArchitecture, TeacherHead
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.target_space import CHANNELS, MATRIX, SCALAR


def fold_head(head: TeacherHead, mean: bool = True) -> HeadArchitecture:
    """Fold ``head`` in place, and return its new architecture.

    Args:
        mean: fold everything. False keeps a mean and a single scale, applied in fp32 after the layers (in half
            precision a mean that is large compared with the standard deviation loses precision), and folds only a
            matrix, which is slow to apply.
    """
    for kind in ("summary", "spatial"):
        if getattr(head, kind) is None or not (mean or head.form(kind) == MATRIX):
            continue
        if kind not in head.architecture.raw_kinds:
            _fold(head, kind, mean)
        elif mean:
            head.register_space(kind, len(getattr(head, f"{kind}_mean")))
    kinds = [kind for kind in ("summary", "spatial") if getattr(head, kind) is not None]
    now: dict[str, Any] = {f"{kind}_norm": head.form(kind) for kind in kinds}
    kept = () if mean else head.architecture.raw_kinds
    head.architecture = replace(head.architecture, raw_kinds=kept, **now)
    return head.architecture


def fold_heads(student: nn.Module) -> None:
    """Fold the matrices of all heads of ``student`` in place: at each position they cost more than a head itself.

    Outputs stay the same. A quantized head is left as it is, because its scales belong to its weights.
    """
    for head in student.modules():
        if isinstance(head, TeacherHead) and not quantizers(head):
            fold_head(head, mean=False)


@torch.no_grad()
def unfold_head(head: TeacherHead, kind: str) -> None:
    """Transform the last layer of ``kind``, which returns raw features, to return them in the space of the losses.

    With the transform in the buffers the head's raw output stays the same: this is for a head that was trained
    elsewhere, once the run's own transform is known.
    """
    linear, inverse = last_linear(getattr(head, kind)), _inverse(head, kind)
    centre = getattr(head, f"{kind}_mean").double()
    for rows in _positions(linear, centre):
        linear.weight[rows] = torch.linalg.solve(inverse, linear.weight[rows].double()).to(linear.weight)
        linear.bias[rows] = torch.linalg.solve(inverse, linear.bias[rows].double() - centre).to(linear.bias)


def raw_layers(head: TeacherHead, kind: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the layers among the ``tensors`` of a head like ``head``, folded so that they return raw features.

    Args:
        tensors: of ``kind``, by their names in a head; without a transform among them they return raw features already.
    """
    layers = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}
    mean = tensors.get(f"{kind}_mean")
    if mean is None or mean.is_meta or not layers:
        return layers
    theirs = copy.deepcopy(head)
    theirs.register_space(kind, len(mean), form_of(kind, tensors))
    theirs.load_state_dict(tensors, strict=False)
    _fold(theirs, kind, mean=True)
    return {name: tensor for name, tensor in theirs.state_dict().items() if name in layers}


def form_of(kind: str, tensors: dict[str, torch.Tensor]) -> str:
    """Return the form of the transform of ``kind`` among a head's ``tensors``; without one it is the identity,
    scalar."""
    if f"{kind}_rotation" in tensors:
        return MATRIX
    scale = tensors.get(f"{kind}_scale")
    return CHANNELS if scale is not None and scale.ndim else SCALAR


def last_linear(layers: nn.Module) -> nn.Linear:
    """Return the linear layer whose output ``layers`` returns: the last one in it."""
    return [module for module in layers.modules() if isinstance(module, nn.Linear)][-1]


@torch.no_grad()
def _fold(head: TeacherHead, kind: str, mean: bool) -> None:
    linear, inverse = last_linear(getattr(head, kind)), _inverse(head, kind)
    centre = getattr(head, f"{kind}_mean").double()
    if linear.bias is None:
        linear.bias = nn.Parameter(torch.zeros_like(linear.weight[:, 0]))
    for rows in _positions(linear, centre):
        linear.weight[rows] = (inverse @ linear.weight[rows].double()).to(linear.weight)
        linear.bias[rows] = (inverse @ linear.bias[rows].double() + (centre if mean else 0)).to(linear.bias)
    head.register_space(kind, len(centre))
    head.to(linear.weight.device)
    if not mean:
        head.set_space(kind, mean=centre)


def _inverse(head: TeacherHead, kind: str) -> torch.Tensor:
    """Return V of ``raw = V z + mu``, float64 ``[D, D]``."""
    if head.form(kind) == MATRIX:
        return getattr(head, f"{kind}_inverse").double()
    return torch.diag(getattr(head, f"{kind}_scale").double().expand(len(getattr(head, f"{kind}_mean"))))


def _positions(linear: nn.Linear, centre: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the rows of each position: a head with pixel shuffle computes several positions at once."""
    return torch.arange(linear.out_features, device=linear.weight.device).split(len(centre))
