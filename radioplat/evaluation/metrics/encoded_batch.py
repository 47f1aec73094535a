"""Batches of images with each model's features of them, and the summaries of a complete split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from radioplat.data.batch import Batch
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.models.features import Features


@dataclass(frozen=True)
class EncodedBatch:
    """Images with features; images that could not be read are left out.

    Attributes:
        pixels: uint8 ``[B, 3, S, S]`` by side S in pixels.
        labels: int64 ``[B]``, -1 where an image has no label.
        features: fp32, by the name of the evaluated model or teacher.
        models: by name.
        ids: sample ids in the split's index, int64 ``[B]``.
    """

    pixels: Mapping[int, torch.Tensor]
    labels: torch.Tensor
    features: Mapping[str, Features]
    models: Mapping[str, EvaluatedModel]
    ids: torch.Tensor
    _heads: dict[tuple[str, str], Features] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, batch: Batch, features: Mapping[str, Features], models: Mapping[str, EvaluatedModel]
    ) -> EncodedBatch | None:
        """Select the readable images of ``batch``; None if there are none."""
        readable = torch.from_numpy(batch.weight > 0)
        if not readable.any():
            return None

        def select(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if readable.all() else tensor[readable]

        pixels = {int(size): select(torch.from_numpy(view.pixels)) for size, view in batch.views.items()}
        labels, ids = (select(torch.from_numpy(each)) for each in (batch.label, batch.sample_id))
        return cls(pixels, labels, {name: value.map(select) for name, value in features.items()}, models, ids)

    def __len__(self) -> int:
        return len(self.labels)

    def head(self, model: str, teacher: str) -> Features:
        """Return the features of ``model`` in the space of ``teacher``, by its head; computed once a batch."""
        if (model, teacher) not in self._heads:
            heads = self.models[model].heads
            assert heads is not None
            self._heads[model, teacher] = heads.head(teacher, self.features[model])
        return self._heads[model, teacher]


class Summaries:
    """Summaries of every model, on the CPU, with the labels and the sample ids of the images."""

    def __init__(self) -> None:
        self._summaries: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._labels: list[torch.Tensor] = []
        self._ids: list[torch.Tensor] = []

    def add(self, batch: EncodedBatch) -> None:
        """Add a batch."""
        self._labels.append(batch.labels)
        self._ids.append(batch.ids)
        for name, features in batch.features.items():
            self._summaries[name].append(features.of("summary").cpu())

    @property
    def labels(self) -> torch.Tensor:
        """Labels of all images, int64 ``[N]``, -1 without a label."""
        return torch.cat(self._labels) if self._labels else torch.zeros(0, dtype=torch.long)

    @property
    def ids(self) -> torch.Tensor:
        """Sample ids of all images, int64 ``[N]``."""
        return torch.cat(self._ids) if self._ids else torch.zeros(0, dtype=torch.long)

    @property
    def labelled(self) -> bool:
        """True if any image has a label."""
        return bool((self.labels >= 0).any())

    def of(self, model: str) -> torch.Tensor:
        """Return the summaries ``[N, D]`` of a model; ``[0, 0]`` if there are no images."""
        return torch.cat(self._summaries[model]) if self._summaries[model] else torch.zeros(0, 0)
