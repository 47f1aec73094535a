"""Hidden units of a gated MLP whose first layer gives value and gate in one tensor (SwiGLU: DINOv3, EVA)."""

from __future__ import annotations

from dataclasses import dataclass

import torch_pruning as tp
from torch import nn


@dataclass(frozen=True)
class GatedMlp:
    """The layers of a gated MLP.

    Attributes:
        first: outputs ``2 n`` channels: unit i is i and n + i.
        second: reads n channels.
        deps: of torch-pruning: removal of outputs of ``first`` and of inputs of ``second``.
    """

    first: nn.Linear
    second: nn.Linear
    deps: tuple[tp.dependency.Dependency, tp.dependency.Dependency]

    @property
    def units(self) -> int:
        """Number of hidden units."""
        return self.second.in_features

    def members(self) -> tp.dependency.Group:
        """Return the layers with the channels of each unit, for a score."""
        group, units = tp.dependency.Group(), list(range(self.units))
        for dep, first in ((self.deps[0], 0), (self.deps[0], self.units), (self.deps[1], 0)):
            group.add_dep(dep, [first + unit for unit in units])
            group[len(group) - 1].root_idxs = units
        return group

    def remove(self, units: list[int]) -> None:
        """Remove hidden units."""
        count = self.units
        tp.prune_linear_out_channels(self.first, [*units, *(count + unit for unit in units)])
        tp.prune_linear_in_channels(self.second, units)


def gated_mlp(members: tp.dependency.Group) -> GatedMlp | None:
    """Return the MLP that dependent channels belong to; None if they are others, or have a normalization between."""
    modules = [dep.target.module for dep, _ in members]
    with_weights = [m for m in modules if isinstance(m, nn.Parameter) or any(True for _ in m.parameters(False))]
    if len(with_weights) != 2 or not all(isinstance(layer, nn.Linear) for layer in with_weights):
        return None
    deps, (first, second) = {dep.target.module: dep for dep, _ in members}, with_weights
    outputs = deps[first].handler == tp.prune_linear_out_channels
    if not outputs or deps[second].handler != tp.prune_linear_in_channels:
        return None
    return (
        GatedMlp(first, second, (deps[first], deps[second])) if first.out_features == 2 * second.in_features else None
    )
