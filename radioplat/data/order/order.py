"""The order of samples: a pure function of spec, index and seed.

The n-th sample of the run does not depend on worker count, timing or failures, so the data state of a checkpoint is one
integer. A pass over a source is a seeded, local permutation: shards are shuffled, then the samples within a window of
shards. Weights below the maximum drop samples from a pass and never repeat one: rows are laid end to end on a line,
each with length weight / maximum weight, and a pass takes the rows that contain u, u+1, u+2, ...
with a random u per pass. Each sample takes ``repeats`` positions in a row: as many views of one image (repeated
augmentation; Hoffer et al. 2020, "Augment your batch").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from radioplat.data.order.mixture import Mixture
from radioplat.errors import DataError

DEFAULT_WINDOW = 16  # shards that are shuffled together


class OrderSource(Protocol):
    """The rows of one source with their lengths on the line, grouped by shard."""

    shard_lengths: np.ndarray  # float64 [shards], sum of the row lengths of each shard

    def row_lengths(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sample ids (int64) and lengths (float64, 0 for rejected rows, at most 1) of the rows of ``shard``."""
        ...


@dataclass(frozen=True)
class Refs:
    """A range of the order, all ``[stop - start]``.

    Attributes:
        position: int64.
        source: int32, its number.
        sample_id: int64, row of the index.
        view_number: int64, how many views of the sample came before: ``repeats`` in each pass over its source.
    """

    position: np.ndarray
    source: np.ndarray
    sample_id: np.ndarray
    view_number: np.ndarray


class SampleOrder:
    """The order of a run.

    Args:
        sources: the rows of each source.
        scale_factors: unnormalised share of each source in the mixture.
        seed: seed of the passes.
        window: number of shards whose samples are shuffled together; larger values mix better, smaller ones read more
            sequentially.
        repeats: number of positions in a row that a sample takes.

    Raises:
        DataError: a source has no sample left after the filters.
    """

    def __init__(
        self,
        sources: Sequence[OrderSource],
        scale_factors: Sequence[float],
        seed: int,
        window: int = DEFAULT_WINDOW,
        repeats: int = 1,
    ) -> None:
        self.mixture, self.repeats = Mixture.of(scale_factors), repeats
        self._passes = [_Passes(source, i, seed, window) for i, source in enumerate(sources)]

    def pass_length(self, source: int) -> int:
        """Return the number of samples in a pass of ``source``, which is the same for all passes."""
        return self._passes[source].length

    def slice(self, start: int, stop: int) -> Refs:
        """Return the samples at positions ``start`` to ``stop`` (exclusive), in time proportional to their number."""
        if not 0 <= start <= stop:
            raise ValueError(f"0 <= start <= stop is required, not {start}, {stop}")
        position = np.arange(start, stop, dtype=np.int64)
        place, repeat = np.divmod(position, self.repeats)
        first = int(place[0]) if len(place) else 0
        source, sample_id, pass_number = self._samples(first, int(place[-1]) + 1 if len(place) else 0)
        place -= first
        return Refs(position, source[place], sample_id[place], pass_number[place] * self.repeats + repeat)

    def _samples(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return source, sample id and pass number of the samples from ``start`` to ``stop``, each once."""
        cycle, place = np.divmod(np.arange(start, stop, dtype=np.int64), self.mixture.period)
        source = self.mixture.pattern[place]
        draw = cycle * np.asarray(self.mixture.shares, np.int64)[source] + self.mixture.rank[place]
        if len(self._passes) == 1 and stop > start:
            passes = self._passes[0]
            return source, passes.draws(int(draw[0]), int(draw[-1]) + 1), draw // passes.length
        sample_id = np.empty(stop - start, np.int64)
        pass_number = np.empty(stop - start, np.int64)
        for i, passes in enumerate(self._passes):
            mine = source == i
            if mine.any():
                draws = draw[mine]  # consecutive, as positions are
                sample_id[mine] = passes.draws(int(draws[0]), int(draws[-1]) + 1)
                pass_number[mine] = draws // passes.length
        return source, sample_id, pass_number


class _Passes:
    """The infinite sequence of draws from one source, pass after pass."""

    def __init__(self, source: OrderSource, number: int, seed: int, window: int) -> None:
        self._source, self._number, self._seed, self._window = source, number, seed, window
        self._starts = np.concatenate([[0.0], np.cumsum(source.shard_lengths)])
        total = float(self._starts[-1])
        self.length = int(np.floor(total + 1e-9))  # at least 1 if any row remains: the maximum weight has length 1
        if self.length == 0:
            raise DataError(
                f"source {number} has no sample left after the filters",
                where="dataset.train_dataset",
                hint="Loosen native_resolution_filter, or see `radioplat index` for why each image is rejected.",
            )
        self._stretch = self.length / total  # scales row lengths to an integer sum
        self._pass = lru_cache(maxsize=2)(self._plan_pass)
        self._window_ids = lru_cache(maxsize=4)(self._shuffle_window)

    def draws(self, start: int, stop: int) -> np.ndarray:
        """Return the sample ids (int64) of draws ``start`` to ``stop`` (exclusive)."""
        parts = []
        while start < stop:
            number, offset = divmod(start, self.length)
            end = min(self.length, offset + stop - start)
            parts.append(self._within_pass(number, offset, end))
            start += end - offset
        return np.concatenate(parts)

    def _within_pass(self, number: int, start: int, stop: int) -> np.ndarray:
        bounds = self._pass(number).bounds
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        parts = []
        for w in range(first, len(bounds) - 1):
            if bounds[w] >= stop:
                break
            ids = self._window_ids(number, w)
            parts.append(ids[max(0, start - bounds[w]) : stop - bounds[w]])
        return np.concatenate(parts)

    def _plan_pass(self, number: int) -> _Pass:
        keys = _random(len(self._starts), self._seed, self._number, number, 0)
        u = float(keys[-1] >> np.uint64(11)) / float(1 << 53)
        shards = np.argsort(keys[:-1], kind="stable")
        edges = np.clip(np.ceil(self._starts * self._stretch - u), 0, self.length).astype(np.int64)
        edges[-1] = self.length  # the last point, length - 1 + u, is inside; rounding must not lose it
        ends = np.cumsum(np.diff(edges)[shards])
        windows = np.append(np.arange(0, len(shards), self._window), len(shards))
        return _Pass(u, shards, edges, np.concatenate([[0], ends])[windows])

    def _shuffle_window(self, number: int, window: int) -> np.ndarray:
        plan = self._pass(number)
        shards = plan.shards[window * self._window : (window + 1) * self._window]
        ids = np.concatenate([self._picks(plan, int(shard)) for shard in shards])
        return ids[np.argsort(_random(len(ids), self._seed, self._number, number, 1 + window), kind="stable")]

    def _picks(self, plan: _Pass, shard: int) -> np.ndarray:
        """Return the rows of ``shard`` that contain one of the points u, u+1, u+2, ..."""
        ids, lengths = self._source.row_lengths(shard)
        ids, lengths = ids[lengths > 0], lengths[lengths > 0]
        points = np.arange(plan.edges[shard], plan.edges[shard + 1], dtype=np.float64) + plan.u
        starts = (self._starts[shard] + np.concatenate([[0.0], np.cumsum(lengths)[:-1]])) * self._stretch
        rows = np.searchsorted(starts, points, side="right") - 1
        # No row is longer than the distance of two points, so rows ascend strictly, except for rounding at an edge.
        place = np.arange(len(points))
        rows = np.maximum.accumulate(rows - place) + place
        rows = np.minimum(rows, len(ids) - 1 - place[::-1])
        return ids[rows]


@dataclass(frozen=True)
class _Pass:
    """One pass of one source: offset u, shuffled shards, number of points before each shard and of draws before each
    window."""

    u: float
    shards: np.ndarray
    edges: np.ndarray
    bounds: np.ndarray


def _random(count: int, *key: int) -> np.ndarray:
    """Return ``count`` random 64-bit integers keyed by ``key``; numpy guarantees that raw bits never change."""
    return np.random.PCG64(np.random.SeedSequence(list(key))).random_raw(count)
