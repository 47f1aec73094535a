"""Outputs of a backbone's blocks, and the layers that end the blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.models.student.student import Student

_LINEAR = 1e-3  # largest relative difference of a change that passes through a block as it is


class _Stop(Exception):
    """Ends a forward pass whose rest is not wanted."""


@dataclass(frozen=True)
class Place:
    """Where a block's output is read: behind the block, or before the activation that ends it.

    Attributes:
        activation: name in the block; empty: behind the block.
    """

    block: str
    activation: str = ""

    def module(self, student: Student) -> nn.Module:
        """Return the block; the place -1 is the last of its container."""
        container, _, place = self.block.rpartition(".")
        if place == "-1":
            return [*student.backbone.get_submodule(container).children()][-1]
        return student.backbone.get_submodule(self.block)


@dataclass(frozen=True)
class End:
    """The layer that ends a block: a change of its output changes the block's output by ``scale`` times as much.

    Attributes:
        norm: BatchNorm that normalises its output, if there is one.
        scale: ``[C]``.
    """

    layer: nn.Linear | nn.Conv2d
    norm: _BatchNorm | None
    scale: torch.Tensor


def last_activation(student: Student, block: str, images: torch.Tensor) -> str:
    """Return the name in the block of the module without parameters whose output is the block's; empty: none is."""
    module, last = Place(block).module(student), ["", None]

    def note(layer: nn.Module, inputs: Any, output: Any, name: str) -> None:
        """Keep the last one."""
        last[:] = [name, output]

    with contextlib.ExitStack() as stack:
        for name, layer in module.named_modules():
            if name and not isinstance(layer, nn.Identity) and not any(True for _ in layer.children()):
                stack.enter_context(layer.register_forward_hook(partial(note, name=name)))
        [output] = outputs(student, [Place(block)], images)
    name = str(last[0])
    ends = name and last[1] is output and not any(True for _ in module.get_submodule(name).parameters())
    return name if ends else ""


def outputs(student: Student, places: Sequence[Place], images: torch.Tensor) -> list[torch.Tensor | None]:
    """Return blocks' outputs, None for one that is not one tensor; what follows the last of them is not computed."""
    taken: dict[int, Any] = {}

    def keep(module: nn.Module, inputs: Any, output: Any = None, *, number: int) -> None:
        """Keep it, and stop after the last; a copy of what an activation reads, which it may overwrite."""
        taken[number] = inputs[0].clone() if output is None else output
        if len(taken) == len(places):
            raise _Stop

    with contextlib.ExitStack() as stack:
        for number, place in enumerate(places):
            layer = place.module(student).get_submodule(place.activation)
            register = layer.register_forward_pre_hook if place.activation else layer.register_forward_hook
            stack.enter_context(register(partial(keep, number=number)))
        with contextlib.suppress(_Stop):
            student(images.to(next(student.parameters()).device))
    tensors: list[Any] = [taken.get(number) for number in range(len(places))]
    return [one if torch.is_tensor(one) and one.ndim in (3, 4) else None for one in tensors]


def inputs_and_output(
    student: Student, place: Place, layer: nn.Module, images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a layer reads, and the output of its block."""
    inputs: list[torch.Tensor] = []
    with layer.register_forward_pre_hook(lambda module, given: inputs.append(given[0])):
        [output] = outputs(student, [place], images)
    assert output is not None
    return inputs[-1], output


def end_of(student: Student, place: Place, images: torch.Tensor) -> End | str:
    """Find the last layer of a block whose output passes linearly into the block's, or why there is none.

    It is taken by changing its output: the block's output must change by a constant for each channel times as much.
    """
    module = place.module(student)
    order: list[nn.Module] = []
    produced: dict[nn.Module, torch.Tensor] = {}
    normalise: dict[int, _BatchNorm] = {}

    def note(layer: nn.Module, inputs: Any, output: Any) -> None:
        """Keep the order and the output."""
        order.append(layer)
        produced[layer] = output

    def note_norm(norm: nn.Module, inputs: Any) -> None:
        """Keep which BatchNorm reads an output."""
        assert isinstance(norm, _BatchNorm)
        normalise[id(inputs[0])] = norm

    with contextlib.ExitStack() as stack:
        for layer in module.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                stack.enter_context(layer.register_forward_hook(note))
            elif isinstance(layer, _BatchNorm):
                stack.enter_context(layer.register_forward_pre_hook(note_norm))
        [output] = outputs(student, [place], images)
    assert output is not None
    for layer in reversed(order):
        assert isinstance(layer, (nn.Linear, nn.Conv2d))
        end = _passes(student, place, layer, images, output, produced[layer])
        if end is None:
            continue
        norm = normalise.get(id(produced[layer]))
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            return "it ends with a convolution of several groups"
        if norm is None and layer.bias is None:
            return "its last layer has no bias"
        if norm is not None and (norm.running_mean is None or norm.weight is None):
            return "its last BatchNorm has no statistics or no weights of its own"
        return End(layer, norm, end)
    return "no linear layer or convolution ends it"


def _passes(
    student: Student, place: Place, layer: nn.Module, images: torch.Tensor, output: torch.Tensor, own: torch.Tensor
) -> torch.Tensor | None:
    """Return the factor for each channel by which a change of a layer's output reaches the block's; None: otherwise."""
    channels = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    if output.numel() != own.numel():
        return None
    noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(0)).to(own) * own.std()
    with layer.register_forward_hook(lambda module, inputs, given: given + noise):
        [changed] = outputs(student, [place], images)
    assert changed is not None
    axis = 1 if isinstance(layer, nn.Conv2d) else -1
    where = _axis(output, channels, axis)
    if where is None:
        return None
    difference, noise = _rows(changed - output, where), _rows(noise, axis)
    scale = (difference * noise).sum((0, 1)) / noise.square().sum((0, 1))
    missed = (difference - scale * noise).norm() / difference.norm().clamp(min=1e-12)
    return scale if float(missed) < _LINEAR and float(difference.norm()) > 0 else None


def _axis(output: torch.Tensor, channels: int, layers: int) -> int | None:
    """Return the axis of a block's channels: that of its last layer, or the other one where only that fits."""
    for axis in (layers, 1, -1):
        if output.shape[axis] == channels and (output.ndim == 4 or axis == -1):
            return axis
    return None


def _rows(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return ``[B, positions, C]``."""
    return (tensor.movedim(1, -1) if axis == 1 else tensor).flatten(1, -2)


def as_rows(output: torch.Tensor, end: End) -> torch.Tensor:
    """Return a block's output as ``[B, positions, C]``."""
    axis = _axis(output, len(end.scale), 1 if isinstance(end.layer, nn.Conv2d) else -1)
    assert axis is not None
    return _rows(output, axis)


def input_rows(inputs: torch.Tensor, layer: nn.Linear | nn.Conv2d) -> torch.Tensor:
    """Return what a layer reads for each position of its output, ``[B, positions, D]``."""
    if isinstance(layer, nn.Linear):
        return inputs.flatten(1, -2)
    if layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.padding in ((0, 0), "valid"):
        return inputs.flatten(2).movedim(1, -1)
    padding = layer._reversed_padding_repeated_twice if isinstance(layer.padding, str) else None
    inputs = F.pad(inputs, padding) if padding else inputs
    padded = (0, 0) if padding or isinstance(layer.padding, str) else layer.padding
    return F.unfold(inputs, layer.kernel_size, layer.dilation, padded, layer.stride).movedim(1, -1)
