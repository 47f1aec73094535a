"""Parts of a backbone that channels belong to: hidden units of a block, attention heads, the width between blocks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch_pruning as tp
from timm.models.mambaout import GatedConvBlock
from timm.models.res2net import Bottle2neck
from torch import nn

from radioplat.spec.schema.prune import PrunePart

_SPLITTING = (Bottle2neck, GatedConvBlock)


def attentions(module: nn.Module) -> list[nn.Module]:
    """Return timm's attention layers with one projection for queries, keys and values."""
    return [m for m in module.modules() if isinstance(getattr(m, "qkv", None), nn.Linear) and hasattr(m, "num_heads")]


@torch.no_grad()
def fixed_attentions(module: nn.Module, run: Callable[[], object]) -> list[nn.Module]:
    """Return attention layers that cannot lose heads, found by running copies of them without their first head.

    Some have a table with a row for each head (Swin, TinyViT), others take the width of their input for that of their
    heads (DINOv3).

    Args:
        run: runs images through ``module``.
    """
    calls: dict[nn.Module, tuple[tuple, dict[str, Any]]] = {}
    with contextlib.ExitStack() as hooks:

        def note(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            """Keep what a layer is called with."""
            calls[layer] = args, kwargs

        for layer in attentions(module):
            hooks.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
        run()
    return [layer for layer, call in calls.items() if layer.num_heads > 1 and not _can_lose_a_head(layer, *call)]


def _can_lose_a_head(attention: nn.Module, args: tuple, kwargs: dict[str, Any]) -> bool:
    shape, heads = attention(*args, **kwargs).shape, attention.num_heads
    try:
        small = copy.deepcopy(attention)
        size = small.qkv.out_features // (3 * heads)
        for part, name in ((small.qkv, "weight"), (small.qkv, "bias")):
            if (tensor := getattr(part, name)) is not None:
                setattr(part, name, nn.Parameter(tensor.unflatten(0, (3, heads, size))[:, 1:].flatten(0, 2)))
        small.proj.weight = nn.Parameter(small.proj.weight[:, size:])
        small.num_heads, small.head_dim, small.attn_dim = heads - 1, size, (heads - 1) * size
        return small(*args, **kwargs).shape == shape
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return False


def splitting_blocks(module: nn.Module) -> list[str]:
    """Return the classes of blocks in ``module`` that split their hidden channels at widths that they store.

    Fewer hidden units would need other widths, which torch-pruning does not know.
    """
    return sorted({type(m).__name__ for m in module.modules() if isinstance(m, _SPLITTING)})


def blocks_of(module: nn.Module) -> dict[nn.Module, str]:
    """Return the name of the innermost block that contains each layer.

    A block is a child of a container with two or more linear layers or convolutions, and is not a sequence or list
    itself. Containers are sequences, lists, and modules of a class of which one has two or more children, all of one
    class (RegNet's stages).
    """
    of_one_kind = {type(m) for m in module.modules() if len([*m.children()]) > 1 and _are_alike(m.children())}
    containers = (nn.Sequential, nn.ModuleList, *of_one_kind)
    blocks: dict[nn.Module, str] = {}
    for name, container in module.named_modules():
        if isinstance(container, containers):
            for key, child in container.named_children():
                layers = [m for m in child.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
                if not isinstance(child, nn.Sequential | nn.ModuleList) and len(layers) > 1:
                    blocks |= dict.fromkeys(child.modules(), f"{name}.{key}".lstrip("."))  # outer ones come first
    return blocks


def _are_alike(modules: Iterable[nn.Module]) -> bool:
    return len(set(map(type, modules))) == 1


def part_of(group: tp.dependency.Group, blocks: dict[nn.Module, str], qkv: set[nn.Module]) -> PrunePart:
    """Return the part that a group of dependent channels belongs to."""
    for dep, _ in group:
        if dep.target.module in qkv and dep.handler == tp.function.prune_linear_out_channels:
            return PrunePart.heads
    modules = [dep.target.module for dep, _ in group]
    owners = {blocks.get(m) for m in modules if isinstance(m, nn.Module) and any(True for _ in m.parameters(False))}
    return PrunePart.hidden if len(owners) == 1 and None not in owners else PrunePart.width
