"""Cross-layer equalization (Nagel et al. 2019, section 4.1): ranges made alike across channels, outputs unchanged.

Where nothing but a ReLU lies between two layers, channel i of the first may be divided by s and that input of the
second multiplied by it. ``s_i = sqrt(r1_i r2_i) / r2_i``, r the largest magnitude of the channel in either layer, makes
both ranges the same; over a chain that is repeated until it settles.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

ROUNDS, SETTLED = 40, 1e-3
_RELU = {F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_}
_SAME = {F.dropout, F.dropout2d}  # in evaluation mode


@torch.no_grad()
def equalize(model: nn.Module, example: torch.Tensor) -> list[tuple[str, str]]:
    """Equalize ``model`` in place; the pairs of layers that were, by name.

    Args:
        model: in evaluation mode, its BatchNorms folded; called as ``model(example)``.
    """
    pairs = find_pairs(model, example)
    layers = [(model.get_submodule(a), model.get_submodule(b)) for a, b in pairs]
    for _ in range(ROUNDS):
        moved = [equalize_pair(first, second) for first, second in layers]
        if not moved or max(moved) < SETTLED:
            break
    return pairs


@torch.no_grad()
def equalize_pair(first: nn.Conv2d | nn.Linear, second: nn.Conv2d | nn.Linear) -> float:
    """Make the ranges of one pair alike; how far the farthest channel was from that, as ``|log s|``."""
    made, taken = first.weight.flatten(1).abs().amax(1), _input_rows(second).abs().amax(1)
    alive = (made > 0) & (taken > 0)
    scale = torch.where(alive, (made * taken).sqrt() / taken, torch.ones_like(made))
    first.weight.div_(scale.reshape(-1, *[1] * (first.weight.ndim - 1)))
    if first.bias is not None:
        first.bias.div_(scale)
    if _is_depthwise(second):
        each = scale.repeat_interleave(second.out_channels // second.groups)
        second.weight.mul_(each.reshape(-1, 1, 1, 1))
    else:
        second.weight.mul_(scale.reshape(1, -1, *[1] * (second.weight.ndim - 2)))
    return float(scale.log().abs().max())


def find_pairs(model: nn.Module, example: torch.Tensor) -> list[tuple[str, str]]:
    """Names of (layer, the only layer that takes what it makes, at most a ReLU between), in the model's order."""
    names = {id(m.weight): n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    watch = _Watch(names)
    with watch, torch.no_grad():
        model(example)
    found = [
        (made, takers[0]) for made, takers in watch.takers.items() if len(takers) == 1 and made not in watch.spoiled
    ]
    return [(a, b) for a, b in found if _fit(model.get_submodule(a), model.get_submodule(b))]


class _Watch(TorchFunctionMode):
    """Follows what each layer makes to the functions that take it."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._names = names
        self._maker: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # so that no other tensor gets an id
        self._called: set[str] = set()
        self.takers: dict[str, list[str]] = {}
        self.spoiled: set[str] = set()  # layers whose output goes elsewhere, too, or that run more than once

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [a for a in _flat((*args, *kwargs.values())) if isinstance(a, torch.Tensor)]
        made = [self._maker[id(t)] for t in tensors if id(t) in self._maker]
        layer = next((self._names[id(t)] for t in tensors[1:2] if id(t) in self._names), None)
        result = function(*args, **kwargs)
        if not any(isinstance(r, torch.Tensor) for r in _flat((result,))):
            return result  # asked for a shape or a dtype
        if layer is not None and function in (torch.conv2d, F.conv2d, F.linear):
            if layer in self._called:
                self.spoiled.add(layer)
            self._called.add(layer)
            for name in made:
                self.takers.setdefault(name, []).append(layer)
            self._follow(result, layer)
        elif function in _RELU or function in _SAME:
            for name in made:
                self._follow(result, name)
        else:
            self.spoiled.update(made)
        return result

    def _follow(self, tensor: torch.Tensor, name: str) -> None:
        self._maker[id(tensor)] = name
        self._kept.append(tensor)


def _flat(values) -> list:
    return [v for value in values for v in (_flat(value) if isinstance(value, tuple | list) else [value])]


def _is_depthwise(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups > 1 and layer.groups == layer.in_channels


def _input_rows(layer: nn.Module) -> torch.Tensor:
    """Its weights by input channel, ``[in, n]``."""
    if _is_depthwise(layer):
        return layer.weight.reshape(layer.groups, -1)
    return layer.weight.transpose(0, 1).flatten(1)


def _fit(first: nn.Module, second: nn.Module) -> bool:
    """Whether channels of one are channels of the other: grouped convolutions, but for depthwise ones, mix them."""
    if isinstance(second, nn.Conv2d) and second.groups > 1 and not _is_depthwise(second):
        return False
    if isinstance(first, nn.Linear) is not isinstance(second, nn.Linear):
        return False
    return first.weight.shape[0] == (second.in_channels if isinstance(second, nn.Conv2d) else second.in_features)
