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
    """The tensors of a micro-batch; :meth:`to` moves them to the training device.

    Attributes:
        views: images, uint8 ``[B, 3, H, W]``, by view name.
        weight: of the samples, float32 ``[B]``.
        label: int64 ``[B]``, -1 without a label.
        targets: features by teacher, bf16.
        factors: factor of each teacher's loss terms; 1 for a teacher that is absent. Targets of a teacher with factor 0
            may be any finite numbers: the student's head for it still runs and gets a zero gradient, so that all ranks
            call the same collectives when their micro-batches have different teachers.
        overlaps: by teacher, the geometry of its view relative to the student's; absent if both show all of the same.
        inner_overlaps: the same by view, for teachers inside the module.
        boxes: objects in the student's view, ``[B, M, 6]``, see :class:`radioplat.data.batch.View`.
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
        """Copy the tensors of all fields to ``device``; a tensor that is already there is not copied."""
        return self.map(lambda tensor: tensor.to(device))

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> MicroBatch:
        """Return a copy with ``function`` applied to the tensors of all fields."""
        return _map(self, function)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors of all fields."""
        tensors: list[torch.Tensor] = []
        self.map(lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return tensors

    def split(self, count: int) -> list[MicroBatch]:
        """Return at most ``count`` micro-batches of consecutive samples, of sizes as equal as possible.

        All fields are split, also fields added later: tensors along their first axis, in dicts and dataclasses too.
        """
        samples = torch.arange(len(self.weight))
        sizes = [len(part) for part in samples.tensor_split(min(count, len(samples)))]
        return _split(self, sizes, type(self).__name__)


def _map(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of ``value`` with ``function`` applied to its tensors, in dicts and dataclasses at any depth."""
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
    """Return one ``value`` for each part of the samples; None and numbers are the same in all parts.

    Raises:
        ValueError: a tensor's first axis is not the number of samples.
        TypeError: ``value`` contains an object of another type.
    """
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
