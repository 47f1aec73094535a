"""Tensors of heads whose layers return raw features, for files of other libraries."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from radioplat.models.heads import TeacherHead
from radioplat.models.student.fold_target_norm import fold_head

LAST = "final.2"  # the last linear of an MLP2


def has_mlp(head: TeacherHead, kind: str) -> bool:
    """Return whether the head's ``kind`` (``summary`` or ``spatial``) exists and ends in an ``MLP2``."""
    module = getattr(head, kind, None)
    return isinstance(module, nn.Module) and any(name.endswith(f"{LAST}.weight") for name in module.state_dict())


def folded(head: TeacherHead, kind: str) -> dict[str, torch.Tensor] | None:
    """Return the tensors of the head's ``kind``, with target denormalization folded into the last linear layer.

    Returns:
        Tensors by the names of an ``MLP2``; None if this kind is absent or not an MLP.
    """
    if not has_mlp(head, kind):
        return None
    plain = copy.deepcopy(head)
    fold_head(plain)
    return {name: tensor.detach() for name, tensor in getattr(plain, kind).state_dict().items()}


def upsampling(head: TeacherHead, tensors: dict[str, torch.Tensor]) -> int:
    """Return the upsampling factor of a head's map over the student's, from its folded ``spatial`` tensors."""
    bias = next(v for k, v in tensors.items() if k.endswith(f"{LAST}.bias"))
    return math.isqrt(len(bias) // head.spatial_mean.numel())


def is_linear(head: TeacherHead, kind: str) -> bool:
    """Return whether the head's ``kind`` exists and is not an MLP."""
    return isinstance(getattr(head, kind, None), nn.Module) and not has_mlp(head, kind)


def zero_head(width: int) -> dict[str, torch.Tensor]:
    """Return an ``MLP2`` from ``width`` to one number that is always 0, for formats that need a head."""
    return {
        "fc1.weight": torch.zeros(1, width),
        "fc1.bias": torch.zeros(1),
        "final.0.weight": torch.ones(1),
        "final.0.bias": torch.zeros(1),
        "final.2.weight": torch.zeros(1, 1),
        "final.2.bias": torch.zeros(1),
    }
