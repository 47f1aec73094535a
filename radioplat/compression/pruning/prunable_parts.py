"""Parts of a backbone that channels belong to: hidden units of a block, attention heads, the width between blocks."""

from __future__ import annotations

import torch_pruning as tp
from torch import nn

from radioplat.spec.schema.prune import PrunePart


def attentions(module: nn.Module) -> list[nn.Module]:
    """Return timm's attention layers with one projection for queries, keys and values."""
    return [m for m in module.modules() if isinstance(getattr(m, "qkv", None), nn.Linear) and hasattr(m, "num_heads")]


def blocks_of(module: nn.Module) -> dict[nn.Module, str]:
    """Return the name of the innermost block that contains each layer.

    A block is a child of an ``nn.Sequential`` or ``nn.ModuleList`` with two or more linear layers or convolutions, and
    is not such a container itself.
    """
    blocks: dict[nn.Module, str] = {}
    for name, container in module.named_modules():
        if isinstance(container, nn.Sequential | nn.ModuleList):
            for key, child in container.named_children():
                layers = [m for m in child.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
                if not isinstance(child, nn.Sequential | nn.ModuleList) and len(layers) > 1:
                    blocks |= dict.fromkeys(child.modules(), f"{name}.{key}".lstrip("."))  # outer ones come first
    return blocks


def part_of(group: tp.dependency.Group, blocks: dict[nn.Module, str], qkv: set[nn.Module]) -> PrunePart:
    """Return the part that a group of dependent channels belongs to."""
    for dep, _ in group:
        if dep.target.module in qkv and dep.handler == tp.function.prune_linear_out_channels:
            return PrunePart.heads
    modules = [dep.target.module for dep, _ in group]
    owners = {blocks.get(m) for m in modules if isinstance(m, nn.Module) and any(True for _ in m.parameters(False))}
    return PrunePart.hidden if len(owners) == 1 and None not in owners else PrunePart.width
