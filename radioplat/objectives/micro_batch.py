"""A micro-batch: the input of the training module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from radioplat.losses.base.grid import Overlap
from radioplat.models.features import Features


@dataclass
class MicroBatch:
    """A micro-batch; :meth:`to` moves it to the training device.

    Attributes:
        views: uint8 ``[B, 3, H, W]`` by view name.
        weight: float32 ``[B]``.
        label: int64 ``[B]``, -1 where there is none.
        targets: each teacher's features, bf16.
        factors: factor of each teacher's loss terms, 1 for a teacher that is not named. Targets of a teacher with
            factor 0 may be any finite numbers: its head runs all the same and gets a gradient of zero, so that all
            ranks call the same collectives when their micro-batches have different teachers.
        overlaps: by teacher, the position of its view relative to the student's, where they differ or a mask hides a
            part of one.
        inner_overlaps: the same by view, for teachers inside the module.
        boxes: of the objects in the student's view, ``[B, M, 6]``, see :class:`radioplat.data.batch.View`.
    """

    views: dict[str, torch.Tensor]
    weight: torch.Tensor
    label: torch.Tensor
    targets: dict[str, Features] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    overlaps: dict[str, Overlap] = field(default_factory=dict)
    inner_overlaps: dict[str, Overlap] = field(default_factory=dict)
    boxes: torch.Tensor | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """Copy every tensor of every field to ``device``; a tensor that is there already is not copied."""
        return _map(self, lambda tensor: tensor.to(device))

    def split(self, count: int) -> list[MicroBatch]:
        """At most ``count`` micro-batches of consecutive samples, as equal in size as can be.

        Every field is split, also one that is added later: tensors along their first axis, wherever they are held.
        """
        samples = torch.arange(len(self.weight))
        sizes = [len(part) for part in samples.tensor_split(min(count, len(samples)))]
        return _split(self, sizes, type(self).__name__)


def _map(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply ``function`` to the tensors of ``value``, in dicts and dataclasses at any depth."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map(inner, function) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _map(getattr(value, f.name), function) for f in dataclasses.fields(value)}
        )
    return value


def _split(value: Any, sizes: list[int], name: str) -> list[Any]:
    """``value`` for each part of the samples; what does not depend on the sample is the same for all parts."""
    if isinstance(value, torch.Tensor):
        if len(value) != sum(sizes):
            raise ValueError(f"{name} has {len(value)} rows for {sum(sizes)} samples")
        return list(value.split(sizes))
    if isinstance(value, dict):
        parts = {key: _split(inner, sizes, f"{name}[{key!r}]") for key, inner in value.items()}
        return [{key: part[i] for key, part in parts.items()} for i in range(len(sizes))]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _split(getattr(value, f.name), sizes, f"{name}.{f.name}") for f in dataclasses.fields(value)}
        return [dataclasses.replace(value, **{key: part[i] for key, part in parts.items()}) for i in range(len(sizes))]
    if value is None or isinstance(value, (int, float)):
        return [value] * len(sizes)
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be split into samples")
