"""Structured pruning of the backbone of a student or detector: channels, attention heads, width and blocks."""

from __future__ import annotations

import copy
import fnmatch
import functools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from radioplat.compression.pruning.depth import drop_blocks
from radioplat.compression.pruning.grouped_convolutions import cut_by_groups
from radioplat.compression.pruning.groups import (
    Readers,
    groups_of,
    heads_that_stay,
    trace,
    units_to_remove,
    unsupported,
)
from radioplat.compression.pruning.prunable_parts import attentions, splitting_blocks
from radioplat.compression.pruning.rebuild import all_kept, original_name, rebuild, update_sizes
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.backbones.radio_1d import Radio1D
from radioplat.models.detectors.base import BACKBONE, Detector
from radioplat.models.heads import AttentionHead
from radioplat.models.modifiers.reshaping import keep_children
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student
from radioplat.spec.schema.prune import PruneConfig, PrunePart, PruneScore, SparsityPattern

FUSED = "fused_attn"  # a fused kernel, which tracing cannot follow


@dataclass(frozen=True)
class Cuts:
    """The places that were removed from a student; enough to remove the same from one with other weights.

    Attributes:
        kept: indices of the children that stay, by the name of each container that lost blocks.
        units: the removed units of each group, in the model's order after blocks were removed.
        sizes: number of units of each group before, by its layer's name in the unpruned backbone.
        heads_stay: names of attention layers that cannot lose heads, where heads were to be removed.
    """

    kept: dict[str, list[int]]
    units: list[list[int]]
    sizes: dict[str, int]
    heads_stay: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Aim:
    """The target of a round, so that rounds with rounded numbers end at the same sizes as one cut.

    Attributes:
        sizes: :attr:`Cuts.sizes` of the first round.
        amount: the share of those units that is removed after this round.
    """

    sizes: dict[str, int]
    amount: float


@functools.singledispatch
def prune_model(
    model: Any,
    config: PruneConfig,
    score: ChannelScore,
    images: torch.Tensor | None = None,
    aim: Aim | None = None,
) -> tuple[Any, Cuts]:
    """Return a smaller copy of a student or detector, with the weights that stay, and what was removed.

    Of a detector only channels of the backbone are removed. Encoder and decoder keep their widths; the projections
    before them lose the inputs that the backbone's maps lose.

    Args:
        model: in fp32 with plain weights, as :func:`radioplat.models.vision_model.open_model` returns it.
        score: of ``model``'s own parameters; has added gradients if it needs them.
        images: uint8 ``[B, 3, H, W]``, to rate blocks; needed if ``config.blocks``.
        aim: in rounds, if layers are pruned by amount, each by itself.

    Raises:
        SpecError: the backbone cannot be pruned this way, a pattern names no layer, or nothing would be left.
    """
    raise TypeError(f"{type(model).__name__} cannot be pruned")


@prune_model.register
def _(
    student: Student,
    config: PruneConfig,
    score: ChannelScore,
    images: torch.Tensor | None = None,
    aim: Aim | None = None,
) -> tuple[Student, Cuts]:
    require_plain(student.architecture)
    small = _copy(student)
    kept: dict[str, list[int]] = {}
    if config.blocks and isinstance(student.backbone, Radio1D):
        message = "the blocks of a radio1d_vit_* stand at numbered places, where tokens are merged and split"
        raise SpecError(message, where="prune.blocks", hint="Set it to 0; channels and heads can be pruned.")
    if config.blocks:
        assert images is not None
        kept = drop_blocks(small, config.blocks, images, config.exclude)
    return _cut_channels(student, small, kept, config, score.of(student, small), aim)


@prune_model.register
def _(
    detector: Detector,
    config: PruneConfig,
    score: ChannelScore,
    images: torch.Tensor | None = None,
    aim: Aim | None = None,
) -> tuple[Detector, Cuts]:
    require_plain(detector.architecture.student)
    if detector.pyramid.plain and PrunePart.width in config.cut:
        hint = "Leave width out: hidden units and heads are pruned."
        raise SpecError("the pyramid of a plain ViT is built on its width", where="prune.parts", hint=hint)
    small = copy.deepcopy(detector).eval()
    readers = None if detector.pyramid.plain else _readers(small)
    student, cuts = _cut_channels(detector.student, small.student, {}, config, score, aim, readers)
    made = Detector(replace(detector.architecture, student=student.architecture))
    tensors = {name: tensor for name, tensor in small.state_dict().items() if not name.startswith(BACKBONE)}
    made.load_state_dict(tensors | {f"{BACKBONE}{name}": tensor for name, tensor in student.state_dict().items()})
    return made.eval(), cuts


def _readers(detector: Detector) -> Readers:
    """Return the projections of the maps to the encoder's width. DINO's extra levels read the last map, or the level
    before them."""
    layers = detector.input_projections

    def read(images: torch.Tensor) -> list[torch.Tensor]:
        maps = detector.maps(images)
        levels = [project(level) for project, level in zip(layers, maps, strict=False)]
        for project in layers[len(maps) :]:
            levels.append(project(maps[-1] if len(levels) == len(maps) else levels[-1]))
        return levels

    return Readers(list(layers), read)


def dry_run(architecture: StudentArchitecture, config: PruneConfig) -> Cuts | None:
    """Prune an untrained student, so that errors come before data are read or teachers run; return what it would lose.

    Raises:
        SpecError: as :func:`prune_model`.
    """
    if not config.cut and not config.blocks:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        student = Student(architecture).fold().eval()
        images = torch.randint(0, 256, (1, 3, architecture.img_size, architecture.img_size), dtype=torch.uint8)
        if not ChannelScore(config).needs_gradients:
            student.fuse_branches()
        plain = replace(config, score=PruneScore.magnitude)
        return prune_model(student, plain, ChannelScore(plain), images)[1]


def prune_alike(student: Student, config: PruneConfig, cuts: Cuts) -> Student:
    """Return a copy of ``student`` without the places that were removed from another student of its architecture."""
    require_plain(student.architecture)
    small, plain = _copy(student), ChannelScore(PruneConfig())
    for name, indices in cuts.kept.items():
        keep_children(small.backbone.get_submodule(name), indices)
    return _cut_channels(student, small, cuts.kept, config, plain, cuts)[0]


def _copy(student: Student) -> Student:
    """Return a copy in evaluation mode, with the parameters' gradients."""
    small = copy.deepcopy(student).eval()
    gradients = {name: p.grad for name, p in student.named_parameters()}
    for name, parameter in small.named_parameters():
        parameter.grad = gradients[name]
    return small


def _cut_channels(
    student: Student,
    small: Student,
    kept: dict[str, list[int]],
    config: PruneConfig,
    score: ChannelScore,
    target: Aim | Cuts | None,
    readers: Readers | None = None,
) -> tuple[Student, Cuts]:
    """Remove channels from ``small``, a copy of ``student`` without the dropped blocks.

    Args:
        score: of ``small``'s parameters.
        target: the units to remove, or their number; None for the amount in ``config``.
        readers: of ``small``'s backbone, cut in place.

    Raises:
        SpecError: a pattern of ``prune.exclude`` names no layer.
    """
    names = [name for name, _ in student.backbone.named_modules()]
    for i, pattern in enumerate(config.exclude):
        if not fnmatch.filter(names, pattern):
            raise SpecError(f"no layer of the backbone is called {pattern!r}", where=f"prune.exclude[{i}]")
    fused = [m for m in small.modules() if getattr(m, FUSED, False)]
    for module in fused:
        setattr(module, FUSED, False)
    try:
        fixed = heads_that_stay(small) if PrunePart.heads in config.cut else []
        names = [name for name, module in small.named_modules() if module in fixed]
        with cut_by_groups(small):
            units, sizes = _cut(small, config, score, target, kept, readers, fixed)
        for module in fused:
            setattr(module, FUSED, True)
        update_sizes(small)
        return rebuild(student, small, kept), Cuts(kept, units, sizes, names)
    except (IndexError, KeyError, RuntimeError, AttributeError, ArithmeticError, ValueError, AssertionError) as error:
        # Layers of some families store their sizes in ways that torch-pruning and update_sizes do not support.
        if PrunePart.hidden in config.cut and (blocks := splitting_blocks(student.backbone)):
            message = f"its blocks ({', '.join(blocks)}) split hidden channels at widths that they store"
            hint = "Leave hidden out (prune.parts: [width]), or remove whole blocks (prune.blocks)."
            kind = student.architecture.type
            raise SpecError(f"{kind} cannot lose hidden units: {message}", where="prune.parts", hint=hint) from error
        raise unsupported(student, f"the pruned model does not run ({error})") from error


def require_plain(architecture: StudentArchitecture) -> None:
    """Check that a student can be pruned, whatever its family.

    Raises:
        SpecError: it is quantized, of low rank, or has 2:4 zeros.
    """
    sparsity = architecture.sparsity
    two_of_four = sparsity is not None and sparsity.pattern == SparsityPattern.two_of_four.value
    for refused, message, remedy in (
        (architecture.quantized, "a quantized student cannot be pruned", "quantization: prune first, quantize second"),
        (architecture.low_rank, "a student of low rank cannot be pruned", "low_rank: prune first, low_rank second"),
        (two_of_four, "removing channels breaks the student's 2:4 sparsity", "it, or set the zeros in the same prune"),
    ):
        if refused:
            raise SpecError(message, where="prune.checkpoint", hint=f"Take the checkpoint from before {remedy}.")


def _cut(
    student: Student,
    config: PruneConfig,
    score: ChannelScore,
    target: Aim | Cuts | None,
    kept: dict[str, list[int]],
    readers: Readers | None,
    fixed: list[nn.Module],
) -> tuple[list[list[int]], dict[str, int]]:
    """Remove units from ``student``, in place; return those removed, by group, and :attr:`Cuts.sizes`."""
    if not config.cut:
        return [], {}
    if PrunePart.width in config.cut and any(isinstance(m, AttentionHead) for m in student.heads.modules()):
        raise SpecError(
            "the width cannot be pruned if an attn head reads it, because its attention has the same width",
            where="prune.parts",
            hint="Leave width out, or train heads of spatial_mlp_version: v2.",
        )
    if PrunePart.width in config.cut and any(head.identity for head in student.architecture.heads):
        raise SpecError(
            "the width cannot be pruned: the student's features are compared with a teacher's as they are",
            where="prune.parts",
            hint="Leave width out, or train with distill.teacher[].use_head: true.",
        )
    graph = trace(student, readers)
    groups = list(groups_of(student, graph, config, score, readers, fixed, kept))
    if not groups:
        raise SpecError(
            "no layer of this backbone matches prune.parts and prune.exclude",
            where="prune.parts",
            hint="Name more prune.parts, or exclude fewer layers.",
        )
    unpruned = all_kept(student, kept)
    names = {group.layer: original_name(group.layer, unpruned) for group in groups}
    sizes = {names[group.layer]: group.units for group in groups}
    remaining = None
    if isinstance(target, Aim):
        before = {layer: target.sizes.get(name, sizes[name]) for layer, name in names.items()}
        remaining = {layer: size - int(size * target.amount) for layer, size in before.items()}
    units = target.units if isinstance(target, Cuts) else units_to_remove(groups, config, remaining)
    for group, removed in zip(groups, units, strict=True):
        if removed and group.gated is not None:
            group.gated.remove(removed)
        elif removed:
            indices = [unit * group.size + i for unit in removed for i in range(group.size)]
            root = group.members[0].dep
            graph.get_pruning_group(root.target.module, root.handler, indices).prune()
            for attention in attentions(student.backbone) if group.part is PrunePart.heads else ():
                if attention.qkv is student.backbone.get_submodule(group.layer):
                    attention.num_heads -= len(removed)
    return units, sizes
