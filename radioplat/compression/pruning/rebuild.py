"""Make a cut student consistent: module attributes that depend on sizes, and an architecture that builds it."""

from __future__ import annotations

from dataclasses import replace

import torch

from radioplat.compression.pruning.prunable_parts import attentions
from radioplat.models.modifiers.fuse_branches import fuse_branches
from radioplat.models.modifiers.reshaping import Reshaping, difference
from radioplat.models.modifiers.sparsity import Sparsity
from radioplat.models.student.student import Student, build_backbone


@torch.no_grad()
def update_sizes(student: Student) -> None:
    """Set the attributes by which modules store their own sizes to those of their weights."""
    for attention in attentions(student.backbone):
        attention.attn_dim = attention.proj.in_features
        attention.head_dim = attention.attn_dim // attention.num_heads
    backbone, size = student.backbone, student.architecture.img_size
    features = backbone(torch.zeros(1, 3, size, size))
    backbone.summary_dim, backbone.spatial_dim = features.summary.shape[-1], features.spatial.shape[-1]
    tokens = features.named.get("tokens", features.summary)
    backbone.token_dim = tokens.shape[-1]
    widths = {"num_features": backbone.spatial_dim, "embed_dim": backbone.spatial_dim}
    for name, width in {**widths, "head_hidden_size": backbone.summary_dim}.items():
        if isinstance(getattr(backbone.target, name, None), int):
            setattr(backbone.target, name, width)


def rebuild(student: Student, small: Student, kept: dict[str, list[int]]) -> Student:
    """Build a student from the architecture of ``small``, which was cut from ``student``, and give it its weights.

    Args:
        kept: children that stay of the containers that lost blocks.
    """
    plain = replace(student.architecture, pruned=None)
    unpruned = build_backbone(plain)
    if plain.fused_branches:
        fuse_branches(unpruned)
    shape = difference(unpruned, small.backbone, all_kept(student, kept))
    # Projections of bindings fit the old widths; a run that binds makes its own.
    heads = tuple(replace(head, bindings=()) for head in plain.heads)
    made = Student(replace(plain, pruned=shape, heads=heads, sparsity=_renamed(plain.sparsity, kept)))
    tensors = {k: v for k, v in small.state_dict().items() if ".bindings." not in k}
    made.load_state_dict(tensors)
    return made.eval()


def all_kept(student: Student, kept: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the children that stay of the unpruned backbone if only ``kept`` stay of ``student``'s."""
    before = (student.architecture.pruned or Reshaping()).kept
    return before | {name: [before[name][i] for i in kept[name]] if name in before else kept[name] for name in kept}


def original_name(layer: str, kept: dict[str, list[int]]) -> str:
    """Return a layer's name in the unpruned backbone."""
    for container, indices in kept.items():
        place, dot, rest = layer.removeprefix(f"{container}.").partition(".")
        if layer.startswith(f"{container}.") and dot:
            return f"{container}.{indices[int(place)]}.{rest}"
    return layer


def _renamed(sparsity: Sparsity | None, kept: dict[str, list[int]]) -> Sparsity | None:
    """Return ``sparsity`` with the layers' names after blocks were removed."""
    names = list(sparsity.layers) if sparsity else []
    for container, indices in kept.items():
        places = {f"{container}.{old}.": f"{container}.{new}." for new, old in enumerate(indices)}
        moved = []
        for name in names:
            head = name[: len(container) + 1] + name[len(container) + 1 :].partition(".")[0] + "."
            if not name.startswith(f"{container}."):
                moved.append(name)
            elif head in places:
                moved.append(places[head] + name.removeprefix(head))
        names = moved
    return replace(sparsity, layers=names) if sparsity and names else None
