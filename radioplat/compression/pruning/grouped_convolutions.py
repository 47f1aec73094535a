"""Convolutions with groups of several channels (RegNet, ResNeXt), of which whole groups are removed.

torch-pruning removes single channels, which leaves groups of unlike sizes. While a backbone is cut, such convolutions
have a class of their own, which torch-pruning calls another function for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch_pruning as tp
from torch import nn


class GroupedConv2d(nn.Conv2d):
    """A convolution whose groups have several channels, as many inputs as outputs, while it is cut."""

    @property
    def group_size(self) -> int:
        """Channels of a group."""
        return self.out_channels // self.groups


class GroupedConvPruner(tp.function.BasePruningFunc):
    """Removes whole groups: the same inputs and outputs."""

    def prune_out_channels(self, layer: GroupedConv2d, idxs: Sequence[int]) -> nn.Module:
        """Remove the channels ``idxs``, whole groups."""
        rest = sorted(set(range(layer.out_channels)) - set(idxs))
        layer.groups -= len(idxs) // layer.group_size
        layer.in_channels = layer.out_channels = len(rest)
        layer.weight = self._prune_parameter_and_grad(layer.weight, rest, 0)
        if layer.bias is not None:
            layer.bias = self._prune_parameter_and_grad(layer.bias, rest, 0)
        return layer

    prune_in_channels = prune_out_channels

    def get_out_channels(self, layer: GroupedConv2d) -> int:
        """Return their number."""
        return layer.out_channels

    get_in_channels = get_out_channels


@contextlib.contextmanager
def cut_by_groups(module: nn.Module) -> Iterator[None]:
    """Give grouped convolutions of ``module`` the class above inside the block."""
    layers = [
        layer
        for layer in module.modules()
        if type(layer) is nn.Conv2d and 1 < layer.groups < layer.in_channels == layer.out_channels
    ]
    for layer in layers:
        layer.__class__ = GroupedConv2d
    try:
        yield
    finally:
        for layer in layers:
            layer.__class__ = nn.Conv2d
