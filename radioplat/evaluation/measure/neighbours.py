"""The training images that a model puts nearest to some held-out images, to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from radioplat.data.loading.split_images import Images
from radioplat.errors import DataError
from radioplat.evaluation.metrics.knn import nearest
from radioplat.evaluation.metrics.metric import Setup

SHOWN, NEAREST = 4, 3  # held-out images, and training images for each of them
_BLOCK = 2**15  # rows of the bank that are compared at a time


@dataclass(frozen=True)
class Neighbours:
    """The nearest training images of held-out images.

    Attributes:
        images: the held-out images, uint8 ``[N, 3, S, S]``.
        nearest: by model, uint8 ``[N, k, 3, S, S]``, nearest first.
        same: by model, bool ``[N, k]``: whether a neighbour has the label of the held-out image; None if an image has
            none.
    """

    images: np.ndarray
    nearest: Mapping[str, np.ndarray]
    same: Mapping[str, np.ndarray] | None

    @classmethod
    def find(cls, setup: Setup, bank: Images, queries: Images, names: Sequence[str]) -> Neighbours | None:
        """Search by the cosine of summaries, as kNN does, for the first held-out images of different classes.

        Args:
            setup: after all images were added.
            bank, queries: training and held-out images.
            names: of the models.

        Returns:
            None if there are no images on one side, or no model has summaries.

        Raises:
            DataError: an image cannot be read again.
        """
        training, held_out = setup.training, setup.held_out
        names = [name for name in names if len(training.of(name)) and len(held_out.of(name))]
        chosen = spread_over_classes(held_out.labels.numpy(), SHOWN)
        if not names or not len(chosen):
            return None
        size = max(setup.models[name].size for name in names)
        rows = {name: nearest_rows(training.of(name), held_out.of(name)[chosen], NEAREST) for name in names}
        labels, wanted = training.labels.numpy(), held_out.labels.numpy()[chosen]
        labelled = (wanted >= 0).all() and all((labels[each] >= 0).all() for each in rows.values())
        ids = training.ids.numpy()
        return cls(
            pixels_of(queries, held_out.ids.numpy()[chosen], size),
            {name: np.stack([pixels_of(bank, ids[row], size) for row in each]) for name, each in rows.items()},
            {name: labels[each] == wanted[:, None] for name, each in rows.items()} if labelled else None,
        )


def spread_over_classes(labels: np.ndarray, count: int) -> np.ndarray:
    """Return up to ``count`` rows: the first of each of as many classes, evenly spaced, then further rows."""
    rows = np.arange(len(labels))
    first = np.unique(labels, return_index=True)[1] if (labels >= 0).all() else rows
    if len(first) > count:
        return np.sort(first[np.linspace(0, len(first) - 1, count).round().astype(int)])
    return np.sort(np.concatenate([first, np.setdiff1d(rows, first)])[:count])


def nearest_rows(bank: torch.Tensor, queries: torch.Tensor, count: int) -> np.ndarray:
    """Return the rows of ``bank`` ``[N, D]`` nearest to each of ``queries`` ``[M, D]`` by cosine, int64 ``[M, k]``."""
    near, start = None, 0
    for part in bank.split(_BLOCK):  # a copy of unit length of all of them could be gigabytes
        closest = nearest(_unit(part), torch.zeros(len(part), dtype=torch.long), _unit(queries), count, start)
        near = closest if near is None else near.merged(closest, count)
        start += len(part)
    assert near is not None
    return near.row.numpy()


def _unit(features: torch.Tensor) -> torch.Tensor:
    """Return rows of unit length in fp32; values that are not finite become 0."""
    return F.normalize(features.float().nan_to_num(0.0, 0.0, 0.0), dim=1)


def pixels_of(images: Images, ids: np.ndarray, size: int) -> np.ndarray:
    """Return the views of samples, uint8 ``[len(ids), 3, size, size]``.

    Raises:
        DataError: an image cannot be read again.
    """
    batch = images.reader.read_rows(ids)
    if batch.faults:
        raise DataError(f"an image cannot be read again: {next(iter(batch.faults.values()))}")
    return batch.views[str(size)].pixels
