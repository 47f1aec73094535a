"""The data of one run: its own copy of the index, what the filters and weights say of it, and the order they make."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from radioplat.data.filters import reject_reasons, sample_weights
from radioplat.data.order import ArraySource, SampleOrder
from radioplat.data.reader import GrainReader
from radioplat.data.recipe import Equivariance
from radioplat.data.shard_index import ShardIndex
from radioplat.data.views import ViewSpec
from radioplat.errors import DataError, Problem
from radioplat.spec.dataset import DatasetConfig, SplitConfig

_WEIGHTS, _REASONS = "weights.npy", "reasons.npy"


class RunData:
    """An index with its weights and the order of samples.

    Attributes:
        index: the run's own copy.
        weight: float64 ``[N]``, 0 where a row is rejected.
        reasons: object ``[N]``, ``""`` or why the row is rejected.
    """

    def __init__(self, index: ShardIndex, split: SplitConfig, weight: np.ndarray, reasons: np.ndarray) -> None:
        self.index, self.split, self.weight, self.reasons = index, split, weight, reasons

    @classmethod
    def create(cls, index: ShardIndex, split: SplitConfig, max_pixels: int) -> RunData:
        """Apply the filters and weights of ``split``."""
        reasons = reject_reasons(index, split, max_pixels)
        return cls(index, split, sample_weights(index, reasons == "", split.data_weight_mode), reasons)

    def save(self, directory: Path) -> None:
        """Write the run's copy, readable by :meth:`load` in any process."""
        self.index.save(directory)
        np.save(directory / _WEIGHTS, self.weight)
        np.save(directory / _REASONS, self.reasons.astype("U"))

    @classmethod
    def load(cls, directory: Path, split: SplitConfig) -> RunData:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: the copy is missing or torn.
        """
        try:
            weight, reasons = np.load(directory / _WEIGHTS), np.load(directory / _REASONS).astype(object)
        except (OSError, ValueError) as error:
            raise DataError(f"the run's copy of the index is not whole: {error}", where=str(directory)) from None
        return cls(ShardIndex.load(directory), split, weight, reasons)

    @property
    def scale_factors(self) -> list[float]:
        """Share of each source, in the order of the index."""
        return [s.scale_factor for s in self.split.tar_data_sources] + ([1.0] if self.split.images_dir else [])

    @cached_property
    def order(self) -> SampleOrder:
        """The order of the run.

        Raises:
            DataError: a source has no sample left after the filters.
        """
        sources, problems = [], []
        for i in range(len(self.scale_factors)):
            rows = np.flatnonzero(self.index.source == i)
            if not (self.weight[rows] > 0).any():
                problems.append(self._nothing_left(i, rows))
            else:
                sources.append(ArraySource(rows.astype(np.int64), self.index.shard[rows], self.weight[rows]))
        if problems:
            raise DataError(*problems)
        return SampleOrder(sources, self.scale_factors, self.split.seed)

    def kept(self) -> np.ndarray:
        """Sample ids that the filters leave, int64."""
        return np.flatnonzero(self.reasons == "").astype(np.int64)

    def order_fields(self, global_batch: int, max_pixels: int) -> dict[str, str]:
        """What the order depends on, by name: a resumed run compares them one by one."""
        split = self.split
        return {
            "sources": json.dumps(self.scale_factors),
            "filters": json.dumps([asdict(split.native_resolution_filter), split.dedup]),
            "max_pixels": str(max_pixels),
            "weights": split.data_weight_mode.value if split.data_weight_mode else "uniform",
            "seed": str(split.seed),
            "global_batch": str(global_batch),
            "index_rows": self.index.fingerprint(),
        }

    def _nothing_left(self, source: int, rows: np.ndarray) -> Problem:
        names, counts = np.unique(self.reasons[rows].astype(str), return_counts=True)
        why = ", ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True)) or "it holds no image"
        tars = self.split.tar_data_sources
        folder = tars[source].root_dir if source < len(tars) else self.split.images_dir
        return Problem(
            f"no image of {folder} is left after the filters ({why})",
            "dataset.train_dataset.native_resolution_filter",
            "Loosen the filter or remove the source.",
        )


def order_hash(fields: dict[str, str]) -> str:
    """sha256 (hex) of :meth:`RunData.order_fields`."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=2)
def open_reader(directory: str, dataset_json: str, views: tuple[tuple, ...]) -> GrainReader:
    """The reader of a run's train split, opened once a process.

    Args:
        directory: the run's copy of the index.
        dataset_json: the ``dataset`` section, see :func:`dataset_to_json`.
        views: the fields of each :class:`~radioplat.data.views.ViewSpec`; name and size will do.
    """
    dataset = dataset_from_json(dataset_json)
    data = RunData.load(Path(directory), dataset.train_dataset)
    return GrainReader(
        data.index,
        data.order,
        [ViewSpec(*view) for view in views],
        dataset.augmentation,
        dataset.train_dataset.seed,
        dataset.batch_size,
        dataset.max_pixels,
        Equivariance.of(dataset.train_dataset),
    )


def dataset_to_json(dataset: DatasetConfig) -> str:
    """The section as text: hashable, and cheap to send to another process."""
    return json.dumps(asdict(dataset))


def dataset_from_json(text: str) -> DatasetConfig:
    """Inverse of :func:`dataset_to_json`."""
    from radioplat.spec.load import load_spec

    return load_spec({"dataset": json.loads(text)}).dataset
