"""Groups of dependent channels of a student, their scores, and the choice of those to remove."""

from __future__ import annotations

import fnmatch
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch_pruning as tp
from torch import nn

from radioplat.compression.pruning.gated_mlp import GatedMlp, gated_mlp
from radioplat.compression.pruning.grouped_convolutions import GroupedConv2d, GroupedConvPruner
from radioplat.compression.pruning.prunable_parts import attentions, blocks_of, fixed_attentions, part_of
from radioplat.compression.pruning.rebuild import original_name
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.heads import AttentionHead
from radioplat.models.student.student import Student
from radioplat.spec.schema.prune import PruneConfig, PruneMode, PrunePart, PruneScope


@dataclass(frozen=True)
class Group:
    """Channels that can only be removed together.

    Attributes:
        layer: name in the backbone of a layer that outputs them.
        units: number of channels, or of attention heads.
        size: channels per unit.
        scores: of the units, float ``[units]``; the lowest are removed.
        members: all layers and indices, as torch-pruning lists them.
        gated: the MLP, if its first layer outputs two channels for each unit.
    """

    layer: str
    part: PrunePart
    units: int
    size: int
    scores: torch.Tensor
    members: tp.dependency.Group
    gated: GatedMlp | None = None


@dataclass(frozen=True)
class Readers:
    """Layers outside a student that read features of its backbone, and lose inputs when channels are removed.

    Attributes:
        layers: these layers.
        read: returns their outputs for images.
    """

    layers: list[nn.Module]
    read: Callable[[torch.Tensor], list[torch.Tensor]]


def trace(student: Student, readers: Readers | None = None) -> tp.DependencyGraph:
    """Return the dependencies between channels of backbone, heads and ``readers``.

    Raises:
        SpecError: torch-pruning cannot trace the backbone.
    """
    size = student.architecture.img_size
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parameters outside of layers are fine
            own = {GroupedConv2d: GroupedConvPruner()}
            return tp.DependencyGraph().build_dependency(_Traced(student, readers), image, customized_pruners=own)
    except Exception as error:  # torch-pruning raises many types
        raise unsupported(student, f"its channels cannot be traced ({error})") from error


def groups_of(
    student: Student,
    graph: tp.DependencyGraph,
    config: PruneConfig,
    score: ChannelScore,
    readers: Readers | None = None,
    fixed: Sequence[nn.Module] = (),
    kept: dict[str, list[int]] | None = None,
) -> Iterator[Group]:
    """Yield the groups that ``config`` allows to prune, in the model's order.

    Args:
        fixed: attention layers that keep their heads; see :func:`heads_that_stay`.
        kept: children that stay of containers that lost blocks: ``prune.exclude`` has the names from before.
    """
    names = {module: name for name, module in student.backbone.named_modules()}
    before = {module: original_name(name, kept or {}) for module, name in names.items()}
    ignored = [m for m, name in before.items() if any(fnmatch.fnmatchcase(name, p) for p in config.exclude)]
    convolutions = [m for m in student.modules() if isinstance(m, nn.Conv2d) and not isinstance(m, GroupedConv2d)]
    # A group of such a convolution has several inputs or outputs (FastViT's downsampling: two outputs for each input).
    ignored += [m for m in convolutions if 1 < m.groups < max(m.in_channels, m.out_channels)]
    ignored += [m for m in student.modules() if m not in names]
    ignored += [m for layer in (readers.layers if readers else ()) for m in layer.modules()]
    blocks = blocks_of(student.backbone)
    ignored += [layer.qkv for layer in fixed]
    heads = {layer.qkv: layer.num_heads for layer in attentions(student.backbone) if layer not in fixed}
    for members in graph.get_all_groups(ignored_layers=ignored):
        part = part_of(members, blocks, set(heads))
        if part not in config.cut:
            continue
        module, gated = members[0].dep.target.module, gated_mlp(members)
        if part is PrunePart.heads:
            members, units = _by_projection(graph, members), heads[module]
        elif gated is not None:
            members, units = gated.members(), gated.units
        else:
            units = len(members[0].idxs) // _channels_together(members)
        channels = len(members[0].idxs)
        scores = score(members, channels).reshape(units, -1).sum(1)
        yield Group(names[module], part, units, channels // units, scores, members, gated)


def heads_that_stay(student: Student) -> list[nn.Module]:
    """Return the attention layers of the backbone that cannot lose heads."""
    size = student.architecture.img_size
    return fixed_attentions(student.backbone, lambda: student.backbone(torch.zeros(1, 3, size, size)))


def units_to_remove(
    groups: list[Group], config: PruneConfig, remaining: Mapping[str, int] | None = None
) -> list[list[int]]:
    """Return the units to remove from each group, so that a multiple of the granularity (or one head) remains.

    Args:
        remaining: number of units that remain in a group, by its layer, in place of ``config.amount``.
    """
    relative = [group.scores / group.scores.mean().clamp(min=1e-12) for group in groups]
    ordered = torch.cat(relative).sort().values
    limit = ordered[min(len(ordered) - 1, int(len(ordered) * config.amount))]
    removed = []
    for group, share in zip(groups, relative, strict=True):
        if config.mode is PruneMode.threshold:
            count = int((group.scores < config.threshold * group.scores.max()).sum())
        elif config.scope is PruneScope.all:
            count = int((share < limit).sum())
        else:
            count = max(0, group.units - remaining[group.layer] if remaining else int(group.units * config.amount))
        granularity = max(1, config.granularity // group.size)
        step = 1 if group.part is PrunePart.heads else min(granularity, group.units)
        rest = max(step, -(-(group.units - count) // step) * step)
        removed.append(sorted(group.scores.argsort(stable=True)[: max(0, group.units - rest)].tolist()))
    return removed


class _Traced(nn.Module):
    """Computes all outputs of a student and of ``readers``, so that tracing finds every reader of the backbone."""

    def __init__(self, student: Student, readers: Readers | None) -> None:
        super().__init__()
        self.student, self.readers = student, readers
        self.layers = nn.ModuleList(readers.layers if readers else ())

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return all outputs. Maps are reduced to one row of positions, because torch-pruning would take the second of
        four dimensions for channels."""
        student, wanted = self.student, frozenset({"summary", "spatial"})
        features = student(images, wanted | {"logits"} if student.architecture.num_classes else wanted)
        row = features.spatial.mean(1)
        outputs = [features.summary, row, *features.named.values()]
        tokens = features.named.get("tokens")
        for head in student.heads.values():
            token = features.summary if tokens is None else tokens[:, head.architecture.token_slot]
            outputs += [part(token) for part in (head.summary, head.logits) if part is not None]
            if isinstance(head.spatial, AttentionHead):
                outputs.append(head.spatial.mlp(head.spatial.blocks(row)))
            elif head.spatial is not None:
                outputs.append(head.spatial(row))
        if self.readers is not None:
            outputs += self.readers.read(images)
        return [tensor for tensor in outputs if tensor is not None]


def unsupported(student: Student, why: str) -> SpecError:
    """Return the error for a backbone that cannot be pruned because of ``why``."""
    return SpecError(
        f"{student.architecture.type} cannot be pruned this way: {why}",
        where="model.backbone.type",
        hint="ViT, ResNet, ConvNeXt, EfficientNet and MobileNet can; for others try prune.parts: [hidden] "
        "(docs/use/pruning.md lists families).",
    )


def _channels_together(members: tp.dependency.Group) -> int:
    """Return how many channels in a row are removed together: a group of each grouped convolution among ``members``."""
    sizes = [dep.target.module.group_size for dep, _ in members if isinstance(dep.target.module, GroupedConv2d)]
    return math.lcm(*sizes)


def _by_projection(graph: tp.DependencyGraph, members: tp.dependency.Group) -> tp.dependency.Group:
    """Return the same group in input channels of attention's output projection, in place of those of qkv."""
    for dep, indices in members:
        if isinstance(dep.target.module, nn.Linear) and graph.is_in_channel_pruning_fn(dep.handler):
            return graph.get_pruning_group(dep.target.module, dep.handler, indices)
    raise SpecError("its attention has no linear output projection", where="prune.parts", hint="Leave heads out.")
