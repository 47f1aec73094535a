"""Cross-layer equalization (Nagel et al. 2019, section 4.1): equal weight ranges across channels, same outputs.

If only a ReLU is between two layers, channel i of the first can be divided by s_i and that input of the second
multiplied by it. ``s_i = sqrt(r1_i r2_i) / r2_i``, with r the largest magnitude of the channel in each layer, makes
both ranges equal; over a chain of layers this is repeated until it converges.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

ROUNDS, CONVERGED = 40, 1e-3
_RELU = {F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_}
_IDENTITY = {F.dropout, F.dropout2d}  # in evaluation mode


@torch.no_grad()
def equalize(model: nn.Module, example: torch.Tensor) -> list[tuple[str, str]]:
    """Equalize ``model`` in place; return the names of the pairs of equalized layers.

    Args:
        model: in evaluation mode, its BatchNorms folded; called as ``model(example)``.
    """
    pairs = find_pairs(model, example)
    layers = [(model.get_submodule(a), model.get_submodule(b)) for a, b in pairs]
    for _ in range(ROUNDS):
        moved = [equalize_pair(first, second) for first, second in layers]
        if not moved or max(moved) < CONVERGED:
            break
    return pairs


@torch.no_grad()
def equalize_pair(first: nn.Conv2d | nn.Linear, second: nn.Conv2d | nn.Linear) -> float:
    """Equalize one pair of layers; return the largest ``|log s|`` of a channel."""
    out_range, in_range = first.weight.flatten(1).abs().amax(1), _input_rows(second).abs().amax(1)
    nonzero = (out_range > 0) & (in_range > 0)
    scale = torch.where(nonzero, (out_range * in_range).sqrt() / in_range, torch.ones_like(out_range))
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
    """Return pairs of names, in the model's order: a layer, and the only layer that reads its output, directly or after
    a ReLU."""
    names = {id(m.weight): n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    with _Tracer(names) as tracer, torch.no_grad():
        model(example)
    pairs = [(a, readers[0]) for a, readers in tracer.readers.items() if len(readers) == 1 and a not in tracer.excluded]
    return [(a, b) for a, b in pairs if _same_channels(model.get_submodule(a), model.get_submodule(b))]


class _Tracer(TorchFunctionMode):
    """Follows the output of each layer to the functions that read it."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._names = names
        self._producer: dict[int, str] = {}
        self._alive: list[torch.Tensor] = []  # so that no other tensor gets the same id
        self._called: set[str] = set()
        self.readers: dict[str, list[str]] = {}
        self.excluded: set[str] = set()  # layers with other readers of their output, or called more than once

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [a for a in _flat((*args, *kwargs.values())) if isinstance(a, torch.Tensor)]
        producers = [self._producer[id(t)] for t in tensors if id(t) in self._producer]
        layer = next((self._names[id(t)] for t in tensors[1:2] if id(t) in self._names), None)
        result = function(*args, **kwargs)
        if not any(isinstance(r, torch.Tensor) for r in _flat((result,))):
            return result  # a shape or a dtype
        if layer is not None and function in (torch.conv2d, F.conv2d, F.linear):
            if layer in self._called:
                self.excluded.add(layer)
            self._called.add(layer)
            for name in producers:
                self.readers.setdefault(name, []).append(layer)
            self._follow(result, layer)
        elif function in _RELU or function in _IDENTITY:
            for name in producers:
                self._follow(result, name)
        else:
            self.excluded.update(producers)
        return result

    def _follow(self, tensor: torch.Tensor, name: str) -> None:
        self._producer[id(tensor)] = name
        self._alive.append(tensor)


def _flat(values) -> list:
    return [v for value in values for v in (_flat(value) if isinstance(value, tuple | list) else [value])]


def _is_depthwise(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups > 1 and layer.groups == layer.in_channels


def _input_rows(layer: nn.Module) -> torch.Tensor:
    """Return the weights of a layer by input channel, ``[in, n]``."""
    if _is_depthwise(layer):
        return layer.weight.reshape(layer.groups, -1)
    return layer.weight.transpose(0, 1).flatten(1)


def _same_channels(first: nn.Module, second: nn.Module) -> bool:
    """Return whether each output channel of ``first`` is one input channel of ``second``; not so for grouped
    convolutions other than depthwise ones."""
    if isinstance(second, nn.Conv2d) and second.groups > 1 and not _is_depthwise(second):
        return False
    if isinstance(first, nn.Linear) is not isinstance(second, nn.Linear):
        return False
    return first.weight.shape[0] == (second.in_channels if isinstance(second, nn.Conv2d) else second.in_features)
