"""The data of one run: its copy of the index, the results of filters and weights, and the sample order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from radioplat.data.detection.box_table import BoxTable
from radioplat.data.index.columns import Column
from radioplat.data.index.filters import REASONS, draw_frequencies, reject_codes, weight_of
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.order.order import SampleOrder
from radioplat.data.views.render import ViewSpec
from radioplat.data.views.view_plan import Equivariance
from radioplat.errors import DataError, Problem
from radioplat.spec.schema.dataset import DatasetConfig, SplitConfig

# Filters that every checkpoint's order names, set or not.
_FIRST_FILTERS = ("min_short_side", "min_long_side", "min_area", "max_aspect_ratio")
_FREQUENCY, _REASONS, _LENGTHS = "frequency.npy", "reasons.npy", "shard_weights.npy"


class RunData:
    """An index with sampling weights and the order of samples; the arrays are memory-mapped when loaded.

    Attributes:
        index: the run's copy of the index.
        codes: uint8 ``[N]``, 0, or the reason of rejection as an index of
            :data:`radioplat.data.index.filters.REASONS`.
        frequency: uint32 ``[N]``, number of rows with the same hash; 0 for rejected rows.
        shard_weights: float64 ``[shards]``, sum of the weights of each shard.
        boxes: object boxes of the images, for detectors.
    """

    def __init__(
        self,
        index: ShardIndex,
        split: SplitConfig,
        codes: np.ndarray,
        frequency: np.ndarray,
        shard_weights: np.ndarray,
        boxes: BoxTable | None = None,
    ) -> None:
        self.index, self.split, self.boxes = index, split, boxes
        self.codes, self.frequency, self.shard_weights = codes, frequency, shard_weights

    @classmethod
    def create(cls, index: ShardIndex, split: SplitConfig, max_pixels: int, boxes: BoxTable | None = None) -> RunData:
        """Apply the filters and weights of ``split``; with ``boxes``, also reject images without annotations."""
        codes = reject_codes(index, split, max_pixels)
        if boxes is not None:
            codes[(codes == 0) & ~boxes.known] = REASONS.index("no_boxes")
        frequency = draw_frequencies(index, codes == 0, split.data_weight_mode)
        sums = [
            weight_of(frequency[start:stop], split.data_weight_mode).sum()
            for start, stop in zip(index.starts[:-1].tolist(), index.starts[1:].tolist(), strict=True)
        ]
        return cls(index, split, codes, frequency, np.array(sums, np.float64), boxes)

    def save(self, directory: Path) -> None:
        """Write the run's copy, readable by :meth:`load` in any process."""
        self.index.save(directory)
        for name, array in ((_FREQUENCY, self.frequency), (_REASONS, self.codes), (_LENGTHS, self.shard_weights)):
            np.save(directory / name, array)
        if self.boxes is not None:
            self.boxes.save(directory)

    @classmethod
    def load(cls, directory: Path, split: SplitConfig) -> RunData:
        """Open a folder written by :meth:`save`.

        Raises:
            DataError: the copy is missing or incomplete.
        """
        try:
            arrays = [np.load(directory / name, mmap_mode="r") for name in (_REASONS, _FREQUENCY, _LENGTHS)]
        except (OSError, ValueError) as error:
            raise DataError(f"the run's copy of the index is incomplete: {error}", where=str(directory)) from None
        index = ShardIndex.load(directory)
        if [len(array) for array in arrays] != [len(index), len(index), index.shards.num_rows]:
            raise DataError("the run's copy of the index is incomplete: lengths differ", where=str(directory))
        codes, frequency, weights = arrays
        return cls(index, split, codes, frequency, weights, BoxTable.load(directory))

    @property
    def weight(self) -> np.ndarray:
        """float64 ``[N]``, sampling weights, 0 for rejected rows; computed at each access."""
        return weight_of(np.asarray(self.frequency), self.split.data_weight_mode)

    @cached_property
    def reasons(self) -> Column:
        """object ``[N]``, the reason of rejection as text, ``""`` for rows that are kept."""
        words = np.array(REASONS, object)
        return Column(len(self.codes), object, lambda rows: words[self.codes[rows]], lambda: words[self.codes])

    def kept_of(self, source: int) -> int:
        """Return the number of rows of ``source`` that pass the filters."""
        rows = self.index.rows_of(source)
        return int(np.count_nonzero(self.codes[rows.start : rows.stop] == 0))

    def rejected(self, source: int) -> dict[str, int]:
        """Return the number of rows of ``source`` that each filter rejects, without filters that reject none."""
        rows = self.index.rows_of(source)
        counts = np.zeros(len(REASONS), np.int64)
        for start in range(rows.start, rows.stop, 1 << 20):
            counts += np.bincount(self.codes[start : min(start + (1 << 20), rows.stop)], minlength=len(REASONS))
        return {name: int(count) for name, count in zip(REASONS, counts, strict=True) if name and count}

    @property
    def scale_factors(self) -> list[float]:
        """Unnormalised share of each source, in the order of the index."""
        return [s.scale_factor for s in self.split.tar_data_sources] + ([1.0] if self.split.images_dir else [])

    @cached_property
    def order(self) -> SampleOrder:
        """The sample order of the run.

        Raises:
            DataError: all samples of a source are rejected.
        """
        sources, problems = [], []
        for i in range(len(self.scale_factors)):
            shards = self.index.shards_of(i)
            if not self.shard_weights[shards.start : shards.stop].any():
                problems.append(self._nothing_left(i))
            else:
                sources.append(_RunSource(self, shards))
        if problems:
            raise DataError(*problems)
        return SampleOrder(sources, self.scale_factors, self.split.seed, repeats=self.split.views_per_step)

    def kept(self) -> np.ndarray:
        """Return the sample ids (int64) that pass the filters."""
        return np.flatnonzero(np.asarray(self.codes) == 0)

    def order_fields(self, global_batch: int, max_pixels: int) -> dict[str, str]:
        """Return the settings that the order depends on, by name; a resumed run compares them one by one."""
        split = self.split
        # Only where they are set: runs from before these fields must resume.
        later = {} if self.boxes is None else {"boxes": self.boxes.digest()}
        if split.views_per_step > 1:
            later["views_per_step"] = str(split.views_per_step)
        return later | {
            "sources": json.dumps(self.scale_factors),
            "filters": json.dumps([_filter_fields(split), split.dedup]),
            "max_pixels": str(max_pixels),
            "weights": split.data_weight_mode.value if split.data_weight_mode else "uniform",
            "seed": str(split.seed),
            "global_batch": str(global_batch),
            "index_rows": self.index.fingerprint(),
        }

    def _nothing_left(self, source: int) -> Problem:
        why = ", ".join(f"{count} {name}" for name, count in self.rejected(source).items()) or "it contains no image"
        tars = self.split.tar_data_sources
        folder = tars[source].root_dir if source < len(tars) else self.split.images_dir
        return Problem(
            f"no image of {folder} is left after the filters ({why})",
            "dataset.train_dataset.native_resolution_filter",
            "Loosen the filter or remove the source.",
        )


class _RunSource:
    """One source of the order (:class:`radioplat.data.order.order.OrderSource`); shards are read when needed."""

    def __init__(self, data: RunData, shards: range) -> None:
        self._frequency, self._mode = data.frequency, data.split.data_weight_mode
        self._starts = data.index.starts[shards.start : shards.stop + 1]
        rarest = _smallest_positive(data.frequency[int(self._starts[0]) : int(self._starts[-1])])
        self._largest = float(weight_of(np.array([rarest]), self._mode)[0])  # weights decrease with the frequency
        self.shard_lengths = data.shard_weights[shards.start : shards.stop] / self._largest

    def row_lengths(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sample ids of a shard, int64 ``[n]``, and their lengths in (0, 1], 0 if rejected, float64 ``[n]``."""
        start, stop = int(self._starts[shard]), int(self._starts[shard + 1])
        return np.arange(start, stop), weight_of(self._frequency[start:stop], self._mode) / self._largest


def _smallest_positive(frequency: np.ndarray) -> int:
    """Return the smallest frequency above 0; almost always 1, which ends the search early."""
    smallest = 0
    for start in range(0, len(frequency), 1 << 20):
        part = frequency[start : start + (1 << 20)]
        part = part[part > 0]
        if len(part):
            smallest = min(smallest or int(part.min()), int(part.min()))
        if smallest == 1:
            break
    return smallest


def _filter_fields(split: SplitConfig) -> dict[str, float | None]:
    """Return the thresholds of the filter. A later field counts only if it is set: runs from before must resume."""
    thresholds = asdict(split.native_resolution_filter)
    return {name: value for name, value in thresholds.items() if name in _FIRST_FILTERS or value is not None}


def differing_fields(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of :meth:`RunData.order_fields` that differ, also those that only one side has."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def order_hash(fields: dict[str, str]) -> str:
    """Return the sha256 (hex) of :meth:`RunData.order_fields`."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=2)
def open_reader(directory: str, dataset_json: str, views: tuple[tuple, ...]) -> MicroBatchReader:
    """Return the reader of a run's train split, cached per process.

    Args:
        directory: the run's copy of the index.
        dataset_json: the ``dataset`` section, see :func:`dataset_to_json`.
        views: constructor arguments of each :class:`~radioplat.data.views.render.ViewSpec`.
    """
    dataset = dataset_from_json(dataset_json)
    data = RunData.load(Path(directory), dataset.train_dataset)
    return MicroBatchReader(
        index=data.index,
        order=data.order,
        views=[ViewSpec(*view) for view in views],
        augmentation=dataset.augmentation,
        seed=dataset.train_dataset.seed,
        batch_size=dataset.batch_size,
        max_pixels=dataset.max_pixels,
        read_timeout_s=dataset.read_timeout_s,
        verify_hashes=dataset.verify_hashes,
        reject_uniform=dataset.train_dataset.reject_uniform_color,
        equivariance=Equivariance.of(dataset.train_dataset),
        boxes=data.boxes,
        storage_timeout_s=dataset.storage_timeout_s,
    )


def dataset_to_json(dataset: DatasetConfig) -> str:
    """Return the section as JSON: hashable, and cheap to send to another process."""
    return json.dumps(asdict(dataset))


def dataset_from_json(text: str) -> DatasetConfig:
    """Return the section from the JSON of :func:`dataset_to_json`."""
    from radioplat.spec.loading.load import load_spec

    return load_spec({"dataset": json.loads(text)}).dataset
