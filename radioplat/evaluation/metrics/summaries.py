"""Summaries and labels of the images of a split, gathered over batches."""

from __future__ import annotations

from collections import defaultdict

import torch

from radioplat.evaluation.metrics.encoded_batch import EncodedBatch


class Summaries:
    """Summaries of every model, on the CPU, and labels."""

    def __init__(self) -> None:
        self._summaries: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._labels: list[torch.Tensor] = []

    def add(self, batch: EncodedBatch) -> None:
        """Add a batch."""
        self._labels.append(batch.labels)
        for name, features in batch.features.items():
            self._summaries[name].append(features.of("summary").cpu())

    @property
    def labels(self) -> torch.Tensor:
        """int64 ``[N]``, -1 where an image has none."""
        return torch.cat(self._labels) if self._labels else torch.zeros(0, dtype=torch.long)

    @property
    def labelled(self) -> bool:
        """Whether any image has a label."""
        return bool((self.labels >= 0).any())

    def of(self, model: str) -> torch.Tensor:
        """Return the summaries ``[N, D]`` of a model."""
        return torch.cat(self._summaries[model])
