"""Blocks that go whole: those that change least what runs through them."""

from __future__ import annotations

import contextlib
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.compression.pruning.parts import blocks_of
from radioplat.errors import SpecError
from radioplat.models.modifiers.reshaping import keep_children
from radioplat.models.student.student import Student


@torch.no_grad()
def influence(student: Student, images: torch.Tensor) -> dict[str, float]:
    """1 - mean cosine between what enters a block and what leaves it (block influence; Men et al. 2024, section 3).

    Args:
        images: uint8 ``[B, 3, H, W]``.

    Returns:
        By name in the backbone; only of blocks whose output has their input's shape, which the others can do without.
    """
    names = set(blocks_of(student.backbone).values())
    modules, found = dict(student.backbone.named_modules()), {}

    def see(module: nn.Module, inputs: tuple, output: torch.Tensor, name: str) -> None:
        """Compare along the channels."""
        if torch.is_tensor(output) and torch.is_tensor(inputs[0]) and inputs[0].shape == output.shape:
            along = -1 if output.ndim == 3 else 1
            found[name] = 1 - F.cosine_similarity(inputs[0], output, dim=along).mean().item()

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(modules[name].register_forward_hook(partial(see, name=name)).remove)
        student(images)
    return found


def drop_blocks(student: Student, count: int, images: torch.Tensor) -> dict[str, list[int]]:
    """Take the ``count`` blocks of least :func:`influence` out of the backbone, in place.

    Returns:
        The children that stay, by the name of each container that lost some.

    Raises:
        SpecError: there are not so many that the backbone can do without; every container keeps one.
    """
    worth = influence(student, images)
    sizes = {name: len(student.backbone.get_submodule(name)) for name in {_container(name) for name in worth}}
    going: dict[str, set[int]] = {}
    for name in sorted(worth, key=worth.__getitem__):
        container, place = _container(name), int(name.rpartition(".")[2])
        if sum(map(len, going.values())) < count and sizes[container] - len(going.get(container, ())) > 1:
            going.setdefault(container, set()).add(place)
    found = sum(map(len, going.values()))
    if found < count:
        raise SpecError(f"{count} blocks cannot go: the backbone can do without {found}", where="prune.blocks")
    kept = {name: [i for i in range(sizes[name]) if i not in gone] for name, gone in going.items()}
    for name, indices in kept.items():
        keep_children(student.backbone.get_submodule(name), indices)
    return kept


def _container(name: str) -> str:
    return name.rpartition(".")[0]
