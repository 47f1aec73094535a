"""What models said of the images of a split, gathered over batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from radioplat.data.batch import Batch
from radioplat.models.features import Features

MOST = 5  # guesses of a classifier that are kept


class Rows:
    """Summaries, labels and classifier answers.

    Args:
        names: of the models.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._summaries: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        self._labels: list[torch.Tensor] = []
        self._right: dict[str, list[torch.Tensor]] = {}  # bool [n, k]: whether the first, ..., k-th guess is right

    def add(self, batch: Batch, features: dict[str, Features]) -> None:
        """Keep what models said of a batch, samples that could not be read aside."""
        alive = torch.from_numpy(batch.weight > 0)
        label = torch.tensor(batch.label)[alive]
        self._labels.append(label)
        for name, value in features.items():
            assert value.summary is not None
            self._summaries[name].append(value.summary[alive].cpu())
            if "logits" in value.named:
                logits = value.named["logits"]
                guesses = logits.topk(min(MOST, logits.shape[-1])).indices.cpu()[alive]
                self._right.setdefault(name, []).append((guesses == label[:, None])[label >= 0])

    @property
    def label(self) -> torch.Tensor:
        """int64 ``[n]`` of all rows so far, -1 where there is none."""
        return torch.cat(self._labels) if self._labels else torch.zeros(0, dtype=torch.long)

    @property
    def has_labels(self) -> bool:
        """Whether any row has one."""
        return bool((self.label >= 0).any())

    def summary(self, name: str) -> torch.Tensor:
        """``[n, D]`` of a model."""
        return torch.cat(self._summaries[name])

    def accuracy(self, guesses: int = 1) -> dict[str, float]:
        """Share of labelled rows that a model's own classifier has right, by those that have one.

        Args:
            guesses: within so many, at most 5; all of a classifier with fewer classes.
        """
        answers = {name: torch.cat(right)[:, :guesses].any(1) for name, right in self._right.items()}
        return {name: float(right.double().mean()) for name, right in answers.items() if len(right)}
