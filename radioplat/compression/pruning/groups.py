"""The channels of a student that hang together, what they are worth, and which of them go."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch_pruning as tp
from torch import nn

from radioplat.compression.pruning.parts import attentions, blocks_of, part_of
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.heads import AttentionHead
from radioplat.models.student.student import Student
from radioplat.spec.schema.prune import PruneConfig, PruneMode, PrunePart, PruneScope


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


@dataclass(frozen=True)
class Readers:
    """Layers outside a student that read what is inside its backbone, and lose inputs with it.

    Attributes:
        layers: those.
        read: images to what they say.
    """

    layers: list[nn.Module]
    read: Callable[[torch.Tensor], list[torch.Tensor]]


def trace(student: Student, readers: Readers | None = None) -> tp.DependencyGraph:
    """Which channels hang together, backbone and heads, and ``readers`` of it.

    Raises:
        SpecError: the backbone does things that cannot be followed.
    """
    size = student.architecture.img_size
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it found parameters of no layer, which is well
            return tp.DependencyGraph().build_dependency(_Traced(student, readers), image)
    except Exception as error:  # torch-pruning's own, of many kinds
        raise unsupported(student, f"its channels cannot be followed ({error})") from error


def groups_of(
    student: Student,
    graph: tp.DependencyGraph,
    config: PruneConfig,
    score: ChannelScore,
    readers: Readers | None = None,
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
    left += [m for layer in (readers.layers if readers else ()) for m in layer.modules()]
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


def chosen(groups: list[Group], config: PruneConfig, stays: Mapping[str, int] | None = None) -> list[list[int]]:
    """The units that go, by group; what stays is a multiple of the granularity (of heads: at least one).

    Args:
        stays: how many units of a group are to stay, by its layer, instead of what ``config.amount`` leaves of it.
    """
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
            count = group.units - stays[group.layer] if stays else int(group.units * config.amount)
            count = max(0, count)
        step = 1 if group.part is PrunePart.heads else min(config.granularity, group.units)
        stay = max(step, -(-(group.units - count) // step) * step)
        going.append(sorted(order[: max(0, group.units - stay)]))
    return going


class _Traced(nn.Module):
    """All that a student says of images, so that heads are seen to read what the backbone makes."""

    def __init__(self, student: Student, readers: Readers | None) -> None:
        super().__init__()
        self.student, self.readers = student, readers
        self.beside = nn.ModuleList(readers.layers if readers else ())

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
        if self.readers is not None:
            found += self.readers.read(images)
        return [tensor for tensor in found if tensor is not None]


def unsupported(student: Student, why: str) -> SpecError:
    """The error for a backbone that cannot be pruned, and ``why``."""
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
