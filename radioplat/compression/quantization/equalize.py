"""Cross-layer equalization (Nagel et al. 2019, section 4.1): equal weight ranges across channels, same outputs.

If only a ReLU is between two layers, channel i of the first can be divided by s_i and that input of the second
multiplied by it. ``s_i = sqrt(r1_i r2_i) / r2_i``, with r the largest magnitude of the channel in each layer, makes
both ranges equal; over a chain of layers this is repeated until it converges.

A ReLU6 between them clips at 6 whatever the factor, so calibration images decide: a channel that comes near 6 keeps its
factor of 1, and every other one is enlarged at most until it does. No value of these images is clipped anew, and the
activation stays a ReLU6, which engines fuse.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

ROUNDS, CONVERGED = 40, 1e-3
CLIP, HEADROOM = 6.0, 1.25  # of ReLU6, and how far other images may be above the calibration images
_RELU = {F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_}
_IDENTITY = {F.dropout, F.dropout2d}  # in evaluation mode


@torch.no_grad()
def equalize(model: nn.Module, example: torch.Tensor, batches: Sequence[torch.Tensor] = ()) -> list[tuple[str, str]]:
    """Equalize ``model`` in place; return the names of the pairs of equalized layers.

    Args:
        model: in evaluation mode, its BatchNorms folded; called as ``model(example)``.
        batches: calibration images, as ``example``; without them layers with a ReLU6 between them stay as they are.
    """
    pairs, clipped = find_pairs(model, example)
    pairs = [pair for pair in pairs if batches or pair[0] not in clipped]
    peaks = _peaks(model, [first for first, _ in pairs if first in clipped], batches)
    layers = [(model.get_submodule(a), model.get_submodule(b), peaks.get(a)) for a, b in pairs]
    for _ in range(ROUNDS):
        moved = [equalize_pair(*each) for each in layers]
        if not moved or max(moved) < CONVERGED:
            break
    return pairs


@torch.no_grad()
def equalize_pair(
    first: nn.Conv2d | nn.Linear, second: nn.Conv2d | nn.Linear, peaks: torch.Tensor | None = None
) -> float:
    """Equalize one pair of layers; return the largest ``|log s|`` of a channel.

    Args:
        peaks: with a ReLU6 between them: the largest output of each channel of ``first``, updated in place.
    """
    out_range, in_range = first.weight.flatten(1).abs().amax(1), _input_rows(second).abs().amax(1)
    nonzero = (out_range > 0) & (in_range > 0)
    scale = torch.where(nonzero, (out_range * in_range).sqrt() / in_range, torch.ones_like(out_range))
    if peaks is not None:
        least = peaks * HEADROOM / CLIP
        scale = torch.where(least > 1 + CONVERGED, torch.ones_like(scale), scale.maximum(least))
        peaks.div_(scale)
    first.weight.div_(scale.reshape(-1, *[1] * (first.weight.ndim - 1)))
    if first.bias is not None:
        first.bias.div_(scale)
    if _is_depthwise(second):
        each = scale.repeat_interleave(second.out_channels // second.groups)
        second.weight.mul_(each.reshape(-1, 1, 1, 1))
    else:
        second.weight.mul_(scale.reshape(1, -1, *[1] * (second.weight.ndim - 2)))
    return float(scale.log().abs().max())


def find_pairs(model: nn.Module, example: torch.Tensor) -> tuple[list[tuple[str, str]], set[str]]:
    """Return pairs of names, in the model's order: a layer, and the only layer that reads its output, directly or after
    a ReLU or ReLU6; and the layers that a ReLU6 follows."""
    names = {id(m.weight): n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    with _Tracer(names) as tracer, torch.no_grad():
        model(example)
    pairs = [(a, readers[0]) for a, readers in tracer.readers.items() if len(readers) == 1 and a not in tracer.excluded]
    pairs = [(a, b) for a, b in pairs if _same_channels(model.get_submodule(a), model.get_submodule(b))]
    return pairs, tracer.clipped


def _peaks(model: nn.Module, names: Sequence[str], batches: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the largest output of each channel, at least 0, of the layers called ``names``, fp32 ``[channels]``."""
    peaks: dict[str, torch.Tensor] = {}
    with contextlib.ExitStack() as hooks:

        def note(name: str, layer: nn.Module, output: torch.Tensor) -> None:
            """Keep the largest."""
            axis = 1 if isinstance(layer, nn.Conv2d) else -1
            most = output.movedim(axis, 0).flatten(1).amax(1).clamp_min(0).float()
            peaks[name] = torch.maximum(peaks[name], most) if name in peaks else most

        for name in names:
            layer = model.get_submodule(name)
            hook = layer.register_forward_hook(lambda layer, _, output, name=name: note(name, layer, output))
            hooks.callback(hook.remove)
        for images in batches if names else ():
            model(images)
    return peaks


class _Tracer(TorchFunctionMode):
    """Follows the output of each layer to the functions that read it."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._names = names
        self._producer: dict[int, str] = {}
        self._alive: list[torch.Tensor] = []  # so that no other tensor gets the same id
        self._called: set[str] = set()
        self.readers: dict[str, list[str]] = {}
        self.clipped: set[str] = set()  # layers that a ReLU6 follows
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
        elif function in _RELU or function in _IDENTITY or _is_relu6(function, args, kwargs):
            self.clipped.update(producers if _is_relu6(function, args, kwargs) else ())
            for name in producers:
                self._follow(result, name)
        else:
            self.excluded.update(producers)
        return result

    def _follow(self, tensor: torch.Tensor, name: str) -> None:
        self._producer[id(tensor)] = name
        self._alive.append(tensor)


def _is_relu6(function: Callable, args: tuple, kwargs: dict) -> bool:
    """Return whether a call clips to 0 and 6; torch's ReLU6 is a hardtanh with these ends."""
    ends = (*args[1:3], *(kwargs[name] for name in ("min_val", "max_val") if name in kwargs))
    return function is F.relu6 or (function in (F.hardtanh, F.hardtanh_) and ends == (0.0, CLIP))


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
