"""Structured pruning of a student's backbone: channels, attention heads, width and blocks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import nn

from radioplat.compression.pruning.depth import drop_blocks
from radioplat.compression.pruning.groups import Readers, chosen, groups_of, trace, unsupported
from radioplat.compression.pruning.parts import attentions
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.heads import AttentionHead
from radioplat.models.modifiers.reshaping import Reshaping, difference, keep_children
from radioplat.models.modifiers.sparsity import Sparsity
from radioplat.models.student.student import Student, StudentArchitecture, build_backbone
from radioplat.spec.schema.prune import PruneConfig, PrunePart, SparsityPattern

FUSED = "fused_attn"  # a kernel that no trace sees into


@dataclass(frozen=True)
class Cuts:
    """What went from a student, by places: enough to take the same from one of other weights.

    Attributes:
        kept: the children that stay of containers that lost blocks.
        units: those that go, of each group in the model's order, once blocks have gone.
        sizes: how many units each group had, by its layer's name in the backbone that the type builds.
    """

    kept: dict[str, list[int]]
    units: list[list[int]]
    sizes: dict[str, int]


@dataclass(frozen=True)
class Aim:
    """What rounds are on the way to, so that shares of what is left, rounded, end where one cut of the whole does.

    Attributes:
        sizes: :attr:`Cuts.sizes` of the first round.
        amount: the share of those units that has gone after this round.
    """

    sizes: dict[str, int]
    amount: float


def prune_student(student: Student, config: PruneConfig, score: ChannelScore, images: torch.Tensor | None) -> Student:
    """As :func:`prune_and_tell`, without the places."""
    return prune_and_tell(student, config, score, images)[0]


def prune_and_tell(
    student: Student, config: PruneConfig, score: ChannelScore, images: torch.Tensor | None, aim: Aim | None = None
) -> tuple[Student, Cuts]:
    """A smaller copy of ``student``, whose weights are those that stay, and what went.

    Args:
        student: in fp32 with plain weights, as :func:`radioplat.models.student.checkpoint.load_student` gives it.
        score: which has seen gradients where it needs them; of ``student``'s own parameters.
        images: uint8 ``[B, 3, H, W]`` that blocks are judged on; needed where ``config.blocks``.
        aim: of rounds, where layers are pruned by amount, each for itself.

    Raises:
        SpecError: the family cannot be pruned, a pattern names no layer, or nothing would be left.
    """
    require_plain(student.architecture)
    small = _copy(student)
    kept = drop_blocks(small, config.blocks, images) if config.blocks else {}
    return cut_channels(student, small, kept, config, score.of(student, small), aim)


def cut_alike(student: Student, config: PruneConfig, cuts: Cuts) -> Student:
    """A copy of ``student`` that lost what :func:`prune_and_tell` took from another of its form with ``config``."""
    require_plain(student.architecture)
    small, plain = _copy(student), ChannelScore(PruneConfig())
    for name, indices in cuts.kept.items():
        keep_children(small.backbone.get_submodule(name), indices)
    return cut_channels(student, small, cuts.kept, config, plain, cuts)[0]


def _copy(student: Student) -> Student:
    """In evaluation mode, with the gradients that the parameters have."""
    small = copy.deepcopy(student).eval()
    gradients = {name: p.grad for name, p in student.named_parameters()}
    for name, parameter in small.named_parameters():
        parameter.grad = gradients[name]
    return small


def cut_channels(
    student: Student,
    small: Student,
    kept: dict[str, list[int]],
    config: PruneConfig,
    score: ChannelScore,
    told: Aim | Cuts | None,
    readers: Readers | None = None,
) -> tuple[Student, Cuts]:
    """``small``, a copy without the blocks that went, with channels cut; and what went.

    Args:
        score: of ``small``'s parameters.
        told: which units go, or how many; None for as many as ``config`` says.
        readers: of ``small``'s backbone, cut in place.
    """
    fused = [m for m in small.modules() if getattr(m, FUSED, False)]
    for module in fused:
        setattr(module, FUSED, False)
    try:
        units, sizes = _cut(small, config, score, told, _all_kept(student, kept), readers)
        for module in fused:
            setattr(module, FUSED, True)
        _settle(small)
        return _rebuilt(student, small, kept), Cuts(kept, units, sizes)
    except (IndexError, KeyError, RuntimeError, AttributeError, ArithmeticError, ValueError, AssertionError) as error:
        # Layers of some families know their sizes in ways that neither torch-pruning nor this file can change.
        raise unsupported(student, f"what is left of it does not run ({error})") from error


def require_plain(architecture: StudentArchitecture) -> None:
    """Raise what keeps a student of this form from being pruned, whatever its family.

    Raises:
        SpecError: it is quantized, of low rank, or holds 2:4 zeros.
    """
    if architecture.quantized is not None:
        raise SpecError(
            "a quantized student cannot be pruned",
            where="prune.checkpoint",
            hint="Take the checkpoint from before quantization: prune first, quantize second.",
        )
    if architecture.low_rank:
        raise SpecError(
            "a student of low rank cannot be pruned",
            where="prune.checkpoint",
            hint="Take the checkpoint from before its decomposition: prune first, low_rank second.",
        )
    held = architecture.sparsity
    if held is not None and held.pattern == SparsityPattern.two_of_four.value:
        raise SpecError(
            "cutting channels breaks the 2:4 zeros that this student has",
            where="prune.checkpoint",
            hint="Take the checkpoint from before them: channels first, zeros second, or both in one prune.",
        )


def _cut(
    student: Student,
    config: PruneConfig,
    score: ChannelScore,
    told: Aim | Cuts | None,
    kept: dict[str, list[int]],
    readers: Readers | None,
) -> tuple[list[list[int]], dict[str, int]]:
    """Take units out of ``student``, in place; returns what went, by group, and :attr:`Cuts.sizes`."""
    if not config.cut:
        return [], {}
    if PrunePart.width in config.cut and any(isinstance(m, AttentionHead) for m in student.heads.modules()):
        raise SpecError(
            "the width cannot be cut under an attn head, whose own attention has it too",
            where="prune.parts",
            hint="Leave width out, or train heads of spatial_mlp_version: v2.",
        )
    graph = trace(student, readers)
    groups = list(groups_of(student, graph, config, score, readers))
    if not groups:
        raise SpecError(
            "nothing of this backbone can be pruned so",
            where="prune.parts",
            hint="Its layers are excluded, or none belongs to the parts that are named.",
        )
    names = {group.layer: _name_before(group.layer, kept) for group in groups}
    sizes = {names[group.layer]: group.units for group in groups}
    stays = None
    if isinstance(told, Aim):
        whole = {layer: told.sizes.get(name, sizes[name]) for layer, name in names.items()}
        stays = {layer: size - int(size * told.amount) for layer, size in whole.items()}
    units = told.units if isinstance(told, Cuts) else chosen(groups, config, stays)
    for group, going in zip(groups, units, strict=True):
        if going:
            indices = [unit * group.size + i for unit in going for i in range(group.size)]
            root = group.members[0].dep
            graph.get_pruning_group(root.target.module, root.handler, indices).prune()
            for attention in attentions(student.backbone) if group.part is PrunePart.heads else ():
                if group.layer == _name_in(student.backbone, attention.qkv):
                    attention.num_heads -= len(going)
    return units, sizes


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
    plain = replace(student.architecture, pruned=None)
    shape = difference(build_backbone(plain), small.backbone, _all_kept(student, kept))
    # Projections of bindings fit the old widths; a run that binds makes its own.
    heads = tuple(replace(head, bindings=()) for head in plain.heads)
    rebuilt = Student(replace(plain, pruned=shape, heads=heads, sparsity=_renamed(plain.sparsity, kept)))
    tensors = {k: v for k, v in small.state_dict().items() if ".bindings." not in k}
    rebuilt.load_state_dict(tensors)
    return rebuilt.eval()


def _all_kept(student: Student, kept: dict[str, list[int]]) -> dict[str, list[int]]:
    """The children that stay of the backbone that the type builds, once only ``kept`` stay of ``student``'s."""
    before = (student.architecture.pruned or Reshaping()).kept
    return before | {name: [before[name][i] for i in kept[name]] if name in before else kept[name] for name in kept}


def _name_before(layer: str, kept: dict[str, list[int]]) -> str:
    """A layer's name in the backbone that the type builds."""
    for container, indices in kept.items():
        place, dot, rest = layer.removeprefix(f"{container}.").partition(".")
        if layer.startswith(f"{container}.") and dot:
            return f"{container}.{indices[int(place)]}.{rest}"
    return layer


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
