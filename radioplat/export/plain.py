"""A student as a plain module: fp32, nothing reparametrized, heads that give raw features by their layers alone."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.utils import parametrize

from radioplat.models.heads import TeacherHead
from radioplat.models.student import Student

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


def folded(head: TeacherHead, kind: str) -> dict[str, torch.Tensor] | None:
    """Tensors of the head's ``kind`` (``summary`` or ``spatial``), what brings it to raw features in the last linear.

    ``raw`` is affine, ``raw(y) = A y + m``: the last layer ``W h + b`` becomes ``(A W) h + (A b + m)``.

    Returns:
        By the names of an ``MLP2``; None where this kind is absent or no MLP.
    """
    module = getattr(head, kind, None)
    if not isinstance(module, nn.Module):
        return None
    tensors = {k: v.detach().clone() for k, v in module.state_dict().items()}
    last = next((k.removesuffix(".weight") for k in tensors if k.endswith(f"{LAST}.weight")), None)
    if last is None:
        return None
    linear, width = copy.deepcopy(head), getattr(head, f"{kind}_mean").numel()
    getattr(linear, f"{kind}_mean").zero_()  # apart, so that a large mean cannot swallow the weights
    weight, bias = f"{last}.weight", f"{last}.bias"
    # A finer map's layer gives several positions one behind the other, each as wide as the teacher.
    out, hidden = tensors[weight].shape
    tensors[bias] = head.raw(kind, tensors[bias].reshape(-1, width)).reshape(out)
    columns = linear.raw(kind, tensors[weight].T.reshape(hidden, -1, width))
    tensors[weight] = columns.reshape(hidden, out).T.contiguous()
    return tensors


def finer(head: TeacherHead, tensors: dict[str, torch.Tensor]) -> int:
    """How many times finer than the student's map a head's is, from its folded ``spatial`` tensors."""
    bias = next(v for k, v in tensors.items() if k.endswith(f"{LAST}.bias"))
    return math.isqrt(len(bias) // head.spatial_mean.numel())


def is_linear(head: TeacherHead, kind: str) -> bool:
    """Whether the head's ``kind`` is there and ends in no MLP."""
    return isinstance(getattr(head, kind, None), nn.Module) and folded(head, kind) is None


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
