"""Which channels belong to which part of a backbone: the inside of a block, attention heads, the stream between."""

from __future__ import annotations

import torch_pruning as tp
from torch import nn

from radioplat.spec.schema.prune import PrunePart


def attentions(module: nn.Module) -> list[nn.Module]:
    """timm's attention layers with one projection for queries, keys and values."""
    return [m for m in module.modules() if isinstance(getattr(m, "qkv", None), nn.Linear) and hasattr(m, "num_heads")]


def blocks_of(module: nn.Module) -> dict[nn.Module, str]:
    """The innermost block of every layer inside one, by name.

    A block is a child of an ``nn.Sequential`` or ``nn.ModuleList`` that holds two or more linear layers or
    convolutions, and is no such container itself.
    """
    found: dict[nn.Module, str] = {}
    for name, container in module.named_modules():
        if isinstance(container, nn.Sequential | nn.ModuleList):
            for key, child in container.named_children():
                layers = [m for m in child.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
                if not isinstance(child, nn.Sequential | nn.ModuleList) and len(layers) > 1:
                    inner = f"{name}.{key}".lstrip(".")
                    found |= dict.fromkeys(child.modules(), inner)  # outer ones come first
    return found


def part_of(group: tp.dependency.Group, blocks: dict[nn.Module, str], qkv: set[nn.Module]) -> PrunePart:
    """The part that a group of channels belongs to, which must go together."""
    for dep, _ in group:
        if dep.target.module in qkv and dep.handler == tp.function.prune_linear_out_channels:
            return PrunePart.heads
    homes = {blocks.get(dep.target.module) for dep, _ in group if _has_weights(dep.target.module)}
    return PrunePart.hidden if len(homes) == 1 and None not in homes else PrunePart.width


def _has_weights(module: object) -> bool:
    return isinstance(module, nn.Module) and any(True for _ in module.parameters(recurse=False))
