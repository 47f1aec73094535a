"""A batch of images with the features that each model computed of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from radioplat.data.batch import Batch
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.models.features import Features


@dataclass(frozen=True)
class EncodedBatch:
    """Images with features; those that could not be read are left out.

    Attributes:
        pixels: uint8 ``[B, 3, S, S]`` by side S in pixels.
        labels: int64 ``[B]``, -1 where an image has no label.
        features: fp32, by the name of the evaluated model or teacher.
        models: by name.
    """

    pixels: Mapping[int, torch.Tensor]
    labels: torch.Tensor
    features: Mapping[str, Features]
    models: Mapping[str, EvaluatedModel]
    _heads: dict[tuple[str, str], Features] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, batch: Batch, features: Mapping[str, Features], models: Mapping[str, EvaluatedModel]
    ) -> EncodedBatch | None:
        """Select the readable images of ``batch``; None where there are none."""
        readable = torch.from_numpy(batch.weight > 0)
        if not readable.any():
            return None

        def select(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if readable.all() else tensor[readable]

        pixels = {int(size): select(torch.from_numpy(view.pixels)) for size, view in batch.views.items()}
        labels = select(torch.from_numpy(batch.label))
        return cls(pixels, labels, {name: value.map(select) for name, value in features.items()}, models)

    def __len__(self) -> int:
        return len(self.labels)

    def head(self, model: str, teacher: str) -> Features:
        """Return the features of ``model`` in the space of ``teacher``, by its head; computed once a batch."""
        if (model, teacher) not in self._heads:
            heads = self.models[model].heads
            assert heads is not None
            self._heads[model, teacher] = heads.head(teacher, self.features[model])
        return self._heads[model, teacher]
