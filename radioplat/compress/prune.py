"""Structured pruning of a student's backbone: channels, attention heads, width and blocks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import nn

from radioplat.compress.depth import drop_blocks
from radioplat.compress.groups import chosen, groups_of, trace, unsupported
from radioplat.compress.parts import attentions
from radioplat.compress.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.heads import AttentionHead
from radioplat.models.reshaping import Reshaping, difference, keep_children
from radioplat.models.sparsity import Sparsity
from radioplat.models.student import Student, build_backbone
from radioplat.spec.prune import PruneConfig, PrunePart, SparsityPattern

FUSED = "fused_attn"  # a kernel that no trace sees into


@dataclass(frozen=True)
class Cuts:
    """What went from a student, by places: enough to take the same from one of other weights.

    Attributes:
        kept: the children that stay of containers that lost blocks.
        units: those that go, of each group in the model's order, once blocks have gone.
    """

    kept: dict[str, list[int]]
    units: list[list[int]]


def prune_student(student: Student, config: PruneConfig, score: ChannelScore, images: torch.Tensor | None) -> Student:
    """As :func:`prune_and_tell`, without the places."""
    return prune_and_tell(student, config, score, images)[0]


def prune_and_tell(
    student: Student, config: PruneConfig, score: ChannelScore, images: torch.Tensor | None
) -> tuple[Student, Cuts]:
    """A smaller copy of ``student``, whose weights are those that stay, and what went.

    Args:
        student: in fp32 with plain weights, as :func:`radioplat.models.checkpoint.load_student` gives it.
        score: which has seen gradients where it needs them; of ``student``'s own parameters.
        images: uint8 ``[B, 3, H, W]`` that blocks are judged on; needed where ``config.blocks``.

    Raises:
        SpecError: the family cannot be pruned, a pattern names no layer, or nothing would be left.
    """
    _check_plain(student)
    small = _copy(student)
    kept = drop_blocks(small, config.blocks, images) if config.blocks else {}
    small, units = _pruned(student, small, kept, config, score.of(student, small), None)
    return small, Cuts(kept, units)


def cut_alike(student: Student, config: PruneConfig, cuts: Cuts) -> Student:
    """A copy of ``student`` that lost what :func:`prune_and_tell` took from another of its form with ``config``."""
    _check_plain(student)
    small, plain = _copy(student), ChannelScore(PruneConfig())
    for name, indices in cuts.kept.items():
        keep_children(small.backbone.get_submodule(name), indices)
    return _pruned(student, small, cuts.kept, config, plain, cuts.units)[0]


def _copy(student: Student) -> Student:
    """In evaluation mode, with the gradients that the parameters have."""
    small = copy.deepcopy(student).eval()
    gradients = {name: p.grad for name, p in student.named_parameters()}
    for name, parameter in small.named_parameters():
        parameter.grad = gradients[name]
    return small


def _pruned(
    student: Student,
    small: Student,
    kept: dict[str, list[int]],
    config: PruneConfig,
    score: ChannelScore,
    units: list[list[int]] | None,
) -> tuple[Student, list[list[int]]]:
    """``small``, a copy without the blocks that went, with channels cut; and the units that went.

    Args:
        units: that go; None for the least worthy.
    """
    fused = [m for m in small.modules() if getattr(m, FUSED, False)]
    for module in fused:
        setattr(module, FUSED, False)
    try:
        units = _cut(small, config, score, units)
        for module in fused:
            setattr(module, FUSED, True)
        _settle(small)
        return _rebuilt(student, small, kept), units
    except (IndexError, KeyError, RuntimeError, AttributeError, ArithmeticError, ValueError, AssertionError) as error:
        # Layers of some families know their sizes in ways that neither torch-pruning nor this file can change.
        raise unsupported(student, f"what is left of it does not run ({error})") from error


def _check_plain(student: Student) -> None:
    if student.architecture.quantized is not None:
        raise SpecError(
            "a quantized student cannot be pruned",
            where="prune.checkpoint",
            hint="Take the checkpoint from before quantization: prune first, quantize second.",
        )
    if student.architecture.low_rank:
        raise SpecError(
            "a student of low rank cannot be pruned",
            where="prune.checkpoint",
            hint="Take the checkpoint from before its decomposition: prune first, low_rank second.",
        )
    held = student.architecture.sparsity
    if held is not None and held.pattern == SparsityPattern.two_of_four.value:
        raise SpecError(
            "cutting channels breaks the 2:4 zeros that this student has",
            where="prune.checkpoint",
            hint="Take the checkpoint from before them: channels first, zeros second, or both in one prune.",
        )


def _cut(student: Student, config: PruneConfig, score: ChannelScore, units: list[list[int]] | None) -> list[list[int]]:
    """Take ``units``, or the least worthy channels, out of ``student``, in place; returns what went, by group."""
    if not config.cut:
        return []
    if PrunePart.width in config.cut and any(isinstance(m, AttentionHead) for m in student.heads.modules()):
        raise SpecError(
            "the width cannot be cut under an attn head, whose own attention has it too",
            where="prune.parts",
            hint="Leave width out, or train heads of spatial_mlp_version: v2.",
        )
    graph = trace(student)
    groups = list(groups_of(student, graph, config, score))
    if not groups:
        raise SpecError(
            "nothing of this backbone can be pruned so",
            where="prune.parts",
            hint="Its layers are excluded, or none belongs to the parts that are named.",
        )
    units = chosen(groups, config) if units is None else units
    for group, going in zip(groups, units, strict=True):
        if going:
            indices = [unit * group.size + i for unit in going for i in range(group.size)]
            root = group.members[0].dep
            graph.get_pruning_group(root.target.module, root.handler, indices).prune()
            for attention in attentions(student.backbone) if group.part is PrunePart.heads else ():
                if group.layer == _name_in(student.backbone, attention.qkv):
                    attention.num_heads -= len(going)
    return units


def _name_in(module: nn.Module, part: nn.Module) -> str:
    return next(name for name, m in module.named_modules() if m is part)


@torch.no_grad()
def _settle(student: Student) -> None:
    """Bring what modules know of their own sizes in line with their weights."""
    for attention in attentions(student.backbone):
        attention.attn_dim = attention.proj.in_features
        attention.head_dim = attention.attn_dim // attention.num_heads
    backbone, size = student.backbone, student.architecture.img_size
    said = backbone(torch.zeros(1, 3, size, size))
    backbone.summary_dim, backbone.spatial_dim = said.summary.shape[-1], said.spatial.shape[-1]
    backbone.token_dim = said.named["tokens"].shape[-1] if "tokens" in said.named else backbone.summary_dim
    widths = {"num_features": backbone.spatial_dim, "embed_dim": backbone.spatial_dim}
    for name, width in {**widths, "head_hidden_size": backbone.summary_dim}.items():
        if isinstance(getattr(backbone.target, name, None), int):
            setattr(backbone.target, name, width)


def _rebuilt(student: Student, small: Student, kept: dict[str, list[int]]) -> Student:
    """``small`` as its architecture builds it, so that what is saved is what was pruned."""
    before = student.architecture.pruned or Reshaping()
    plain = replace(student.architecture, pruned=None)
    whole = before.kept | {n: [before.kept[n][i] for i in kept[n]] if n in before.kept else kept[n] for n in kept}
    shape = difference(build_backbone(plain), small.backbone, whole)
    # Projections of bindings fit the old widths; a run that binds makes its own.
    heads = tuple(replace(head, bindings=()) for head in plain.heads)
    rebuilt = Student(replace(plain, pruned=shape, heads=heads, sparsity=_renamed(plain.sparsity, kept)))
    tensors = {k: v for k, v in small.state_dict().items() if ".bindings." not in k}
    rebuilt.load_state_dict(tensors)
    return rebuilt.eval()


def _renamed(sparsity: Sparsity | None, kept: dict[str, list[int]]) -> Sparsity | None:
    """The same layers by their names once blocks have gone."""
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
