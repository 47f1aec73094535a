"""Structured pruning of a student's backbone: channels, attention heads, width and blocks."""

from __future__ import annotations

import copy
import fnmatch
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch_pruning as tp
from torch import nn

from radioplat.compress.depth import drop_blocks
from radioplat.compress.parts import attentions, blocks_of, part_of
from radioplat.compress.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.heads import AttentionHead
from radioplat.models.reshaping import Reshaping, difference
from radioplat.models.student import Student, build_backbone
from radioplat.spec.prune import PruneConfig, PruneMode, PrunePart, PruneScope, SparsityPattern

FUSED = "fused_attn"  # a kernel that no trace sees into


@dataclass(frozen=True)
class Group:
    """Channels that must go together.

    Attributes:
        layer: a layer that makes them, by name in the backbone.
        units: how many can go one by one: channels, or heads.
        size: channels of a unit.
        worth: of each unit, float ``[units]``.
    """

    layer: str
    part: PrunePart
    units: int
    size: int
    worth: torch.Tensor
    members: tp.dependency.Group


def prune_student(student: Student, config: PruneConfig, score: ChannelScore, images: torch.Tensor | None) -> Student:
    """A smaller copy of ``student``; what stays has the weights it had.

    Args:
        student: in fp32 with plain weights, as :func:`radioplat.models.checkpoint.load_student` gives it.
        score: which has seen gradients where it needs them; of ``student``'s own parameters.
        images: uint8 ``[B, 3, H, W]`` that blocks are judged on; needed where ``config.blocks``.

    Raises:
        SpecError: the family cannot be pruned, a pattern names no layer, or nothing would be left.
    """
    _check_plain(student)
    gradients = {name: p.grad for name, p in student.named_parameters()}
    small = copy.deepcopy(student).eval()
    for name, parameter in small.named_parameters():
        parameter.grad = gradients[name]
    score = score.of(student, small)
    kept = drop_blocks(small, config.blocks, images) if config.blocks else {}
    fused = [m for m in small.modules() if getattr(m, FUSED, False)]
    for module in fused:
        setattr(module, FUSED, False)
    try:
        _cut(small, config, score)
        for module in fused:
            setattr(module, FUSED, True)
        _settle(small)
        return _rebuilt(student, small, kept)
    except (IndexError, KeyError, RuntimeError, AttributeError, ValueError, AssertionError) as error:
        # Layers of some families know their sizes in ways that neither torch-pruning nor this file can change.
        raise _unsupported(student, f"what is left of it does not run ({error})") from error


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


def _cut(student: Student, config: PruneConfig, score: ChannelScore) -> None:
    """Take the least worthy channels out of ``student``, in place."""
    if not config.cut:
        return
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
    for group, going in zip(groups, chosen(groups, config), strict=True):
        if going:
            indices = [unit * group.size + i for unit in going for i in range(group.size)]
            root = group.members[0].dep
            graph.get_pruning_group(root.target.module, root.handler, indices).prune()
            for attention in attentions(student.backbone) if group.part is PrunePart.heads else ():
                if group.layer == _name_in(student.backbone, attention.qkv):
                    attention.num_heads -= len(going)


def trace(student: Student) -> tp.DependencyGraph:
    """Which channels hang together, backbone and heads.

    Raises:
        SpecError: the backbone does things that cannot be followed.
    """
    size = student.architecture.img_size
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it found parameters of no layer, which is well
            return tp.DependencyGraph().build_dependency(_Traced(student), image)
    except Exception as error:  # torch-pruning's own, of many kinds
        raise _unsupported(student, f"its channels cannot be followed ({error})") from error


def groups_of(
    student: Student, graph: tp.DependencyGraph, config: PruneConfig, score: ChannelScore
) -> Iterator[Group]:
    """The groups that ``config`` allows to be cut, in the model's order.

    Raises:
        SpecError: a pattern of ``prune.exclude`` names no layer.
    """
    names = {module: name for name, module in student.backbone.named_modules()}
    for i, pattern in enumerate(config.exclude):
        if not fnmatch.filter(names.values(), pattern):
            raise SpecError(f"no layer of the backbone is called {pattern!r}", where=f"prune.exclude[{i}]")
    left = [m for m, name in names.items() if any(fnmatch.fnmatchcase(name, p) for p in config.exclude)]
    left += [m for m in student.modules() if isinstance(m, nn.Conv2d) and 1 < m.groups < m.in_channels]
    left += [m for m in student.modules() if m not in names]
    blocks, layers = blocks_of(student.backbone), attentions(student.backbone)
    heads = {layer.qkv: layer.num_heads for layer in layers}
    for members in graph.get_all_groups(ignored_layers=left):
        part = part_of(members, blocks, set(heads))
        if part not in config.cut:
            continue
        layer = names[members[0].dep.target.module]
        units = len(members[0].idxs)
        if part is PrunePart.heads:
            qkv = members[0].dep.target.module
            members = _from_behind(graph, members)
            units = heads[qkv]
        channels = len(members[0].idxs)
        worth = score(members, channels).reshape(units, -1).sum(1)
        yield Group(layer, part, units, channels // units, worth, members)


def chosen(groups: list[Group], config: PruneConfig) -> list[list[int]]:
    """The units that go, by group; what stays is a multiple of the granularity (of heads: at least one)."""
    every = torch.cat([g.worth / g.worth.mean().clamp(min=1e-12) for g in groups])
    line = every.sort().values[min(len(every) - 1, int(len(every) * config.amount))]
    going = []
    for group in groups:
        order = group.worth.argsort(stable=True).tolist()
        if config.mode is PruneMode.threshold:
            count = int((group.worth < config.threshold * group.worth.max()).sum())
        elif config.scope is PruneScope.all:
            count = int((group.worth / group.worth.mean().clamp(min=1e-12) < line).sum())
        else:
            count = int(group.units * config.amount)
        step = 1 if group.part is PrunePart.heads else min(config.granularity, group.units)
        stay = max(step, -(-(group.units - count) // step) * step)
        going.append(sorted(order[: max(0, group.units - stay)]))
    return going


class _Traced(nn.Module):
    """All that a student says of images, so that heads are seen to read what the backbone makes."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.student = student

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Everything that is not None; maps as one row of positions, for a view of four dimensions would be followed
        as if channels came second."""
        student, wanted = self.student, frozenset({"summary", "spatial"})
        features = student(images, wanted | {"logits"} if student.architecture.num_classes else wanted)
        row = features.spatial.mean(1)
        found = [features.summary, row, *features.named.values()]
        tokens = features.named.get("tokens")
        for head in student.heads.values():
            token = features.summary if tokens is None else tokens[:, head.architecture.token_slot]
            found += [part(token) for part in (head.summary, head.logits) if part is not None]
            if isinstance(head.spatial, AttentionHead):
                found.append(head.spatial.mlp(head.spatial.blocks(row)))
            elif head.spatial is not None:
                found.append(head.spatial(row))
        return [tensor for tensor in found if tensor is not None]


def _unsupported(student: Student, why: str) -> SpecError:
    return SpecError(
        f"{student.architecture.type} cannot be pruned so: {why}",
        where="model.backbone.type",
        hint="ViT, ResNet, ConvNeXt, EfficientNet and MobileNet can; of others try prune.parts: [hidden].",
    )


def _from_behind(graph: tp.DependencyGraph, members: tp.dependency.Group) -> tp.dependency.Group:
    """The same group, counted in channels that attention gives out instead of those of queries, keys and values."""
    for dep, indices in members:
        if isinstance(dep.target.module, nn.Linear) and graph.is_in_channel_pruning_fn(dep.handler):
            return graph.get_pruning_group(dep.target.module, dep.handler, indices)
    raise SpecError("its attention ends in no linear layer", where="prune.parts", hint="Leave heads out.")


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
    rebuilt = Student(replace(plain, pruned=shape, heads=heads))
    tensors = {k: v for k, v in small.state_dict().items() if ".bindings." not in k}
    rebuilt.load_state_dict(tensors)
    return rebuilt.eval()
