"""A student as a plain module: fp32, nothing reparametrized, heads that give raw features by their layers alone."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.utils import parametrize

from radioplat.models.heads import TeacherHead
from radioplat.models.student.fold_target_norm import fold_head
from radioplat.models.student.student import Student

LAST = "final.2"  # the last linear of an MLP2


def plain_copy(student: Student) -> Student:
    """A private copy on the CPU, fp32, in evaluation mode, with plain weights where they were parametrized."""
    copied = copy.deepcopy(student).to(device="cpu", dtype=torch.float32).eval().requires_grad_(False)
    for module in copied.modules():
        if parametrize.is_parametrized(module):
            # A copy shares the class that torch made for the original, and removing changes that class.
            shared = type(module)
            module.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return copied


def has_mlp(head: TeacherHead, kind: str) -> bool:
    """Whether the head's ``kind`` (``summary`` or ``spatial``) is there and ends in an ``MLP2``."""
    module = getattr(head, kind, None)
    return isinstance(module, nn.Module) and any(name.endswith(f"{LAST}.weight") for name in module.state_dict())


def folded(head: TeacherHead, kind: str) -> dict[str, torch.Tensor] | None:
    """Tensors of the head's ``kind``, what brings it to raw features in the last linear.

    Returns:
        By the names of an ``MLP2``; None where this kind is absent or no MLP.
    """
    if not has_mlp(head, kind):
        return None
    plain = copy.deepcopy(head)
    fold_head(plain)
    return {name: tensor.detach() for name, tensor in getattr(plain, kind).state_dict().items()}


def finer(head: TeacherHead, tensors: dict[str, torch.Tensor]) -> int:
    """How many times finer than the student's map a head's is, from its folded ``spatial`` tensors."""
    bias = next(v for k, v in tensors.items() if k.endswith(f"{LAST}.bias"))
    return math.isqrt(len(bias) // head.spatial_mean.numel())


def is_linear(head: TeacherHead, kind: str) -> bool:
    """Whether the head's ``kind`` is there and ends in no MLP."""
    return isinstance(getattr(head, kind, None), nn.Module) and not has_mlp(head, kind)


def silent_head(width: int) -> dict[str, torch.Tensor]:
    """An ``MLP2`` from ``width`` to one number that is always 0, where a format demands a head and there is none."""
    return {
        "fc1.weight": torch.zeros(1, width),
        "fc1.bias": torch.zeros(1),
        "final.0.weight": torch.ones(1),
        "final.0.bias": torch.zeros(1),
        "final.2.weight": torch.zeros(1, 1),
        "final.2.bias": torch.zeros(1),
    }
