"""Plain copies of a model: fp32, without parametrizations."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def plain_copy(model: ModuleT) -> ModuleT:
    """Return a copy on the CPU, in fp32 and evaluation mode, with plain weights in place of parametrized ones."""
    copied = copy.deepcopy(model).to(device="cpu", dtype=torch.float32).eval().requires_grad_(False)
    for module in copied.modules():
        if parametrize.is_parametrized(module):
            # The copy shares the class that torch created for the original; removing parametrizations would change it.
            shared = type(module)
            module.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return copied
