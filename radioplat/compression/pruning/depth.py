"""Removal of whole blocks: those that change their input least."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.compression.pruning.prunable_parts import blocks_of
from radioplat.errors import SpecError
from radioplat.models.modifiers.reshaping import keep_children
from radioplat.models.student.student import Student

SEQUENCES = (nn.Sequential, nn.ModuleList)  # their children can be removed


def removable(backbone: nn.Module) -> list[str]:
    """Return the names of blocks without further blocks inside that stand in a sequence or list, in their order."""
    names = list(dict.fromkeys(blocks_of(backbone).values()))
    inner = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
    return [name for name in inner if isinstance(backbone.get_submodule(_container(name)), SEQUENCES)]


@torch.no_grad()
def influence(student: Student, images: torch.Tensor) -> dict[str, float]:
    """Return 1 - the mean cosine between each block's input and output (block influence; Men et al. 2024, section 3).

    Args:
        images: uint8 ``[B, 3, H, W]``.

    Returns:
        Influence by name in the backbone, only for blocks whose output has the shape of their input: others cannot be
        removed.
    """
    names = removable(student.backbone)
    modules, influences = dict(student.backbone.named_modules()), {}

    def compare(module: nn.Module, inputs: tuple, output: torch.Tensor, name: str) -> None:
        """Compare input and output along the channels."""
        if torch.is_tensor(output) and torch.is_tensor(inputs[0]) and inputs[0].shape == output.shape:
            channels = -1 if output.ndim == 3 else 1
            influences[name] = 1 - F.cosine_similarity(inputs[0], output, dim=channels).mean().item()

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(modules[name].register_forward_hook(partial(compare, name=name)).remove)
        student(images)
    return influences


def drop_blocks(
    student: Student, count: int, images: torch.Tensor, exclude: Sequence[str] = ()
) -> dict[str, list[int]]:
    """Remove the ``count`` blocks of least :func:`influence` from the backbone, in place.

    Args:
        exclude: patterns of names of blocks that stay.

    Returns:
        Indices of the remaining children, by the name of each container that lost some.

    Raises:
        SpecError: fewer blocks can be removed; every container keeps at least one.
    """
    influences = influence(student, images)
    sizes = {name: len(student.backbone.get_submodule(name)) for name in {_container(name) for name in influences}}
    removed: dict[str, set[int]] = {}
    for name in sorted(influences, key=influences.__getitem__):
        container, place = _container(name), int(name.rpartition(".")[2])
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            continue
        if sum(map(len, removed.values())) < count and sizes[container] - len(removed.get(container, ())) > 1:
            removed.setdefault(container, set()).add(place)
    possible = sum(map(len, removed.values()))
    if possible < count:
        message = f"{count} blocks cannot be removed: the backbone works without {possible} at most"
        raise SpecError(message, where="prune.blocks")
    kept = {name: [i for i in range(sizes[name]) if i not in places] for name, places in removed.items()}
    for name, indices in kept.items():
        keep_children(student.backbone.get_submodule(name), indices)
    return kept


def _container(name: str) -> str:
    return name.rpartition(".")[0]
