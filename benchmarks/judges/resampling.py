"""Bootstrap intervals over queries and seeds, for one side and for the paired difference of two.

Queries are drawn with replacement, the same draw for every file, so that a query that is hard for both sides does not
widen their difference. Seeds (files of a side) are drawn with them: of S seeds S - 1, which makes the variance of their
mean unbiased (Rao and Wu 1988; a draw of S has (S - 1) / S of it, a third too little with three seeds). Drawing both at
once is slightly conservative (Owen 2007, the pigeonhole bootstrap). Two sides with the same number of files are paired
file by file: give seeds in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.judges.probes import Hits

DRAWS = 4000
Z = 1.96  # standard errors on each side of a 95 % interval
BLOCK = 500  # draws at a time


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval (percentiles of the bootstrap).

    Attributes:
        value: the mean over seeds.
        lower, upper: the bounds.
        error: the bootstrap's standard error.
    """

    value: float
    lower: float
    upper: float
    error: float


def one_side(files: Sequence[Hits], draws: int = DRAWS, seed: int = 0) -> Interval:
    """Interval of the mean over files, one per seed, of a figure."""
    values = _drawn([files], draws, seed)[0]
    return _interval(float(np.mean([each.figure for each in files])), values)


def difference(ours: Sequence[Hits], theirs: Sequence[Hits], draws: int = DRAWS, seed: int = 0) -> Interval:
    """Interval of the mean of ``ours`` less that of ``theirs``, paired."""
    mine, other = _drawn([ours, theirs], draws, seed)
    value = float(np.mean([each.figure for each in ours]) - np.mean([each.figure for each in theirs]))
    return _interval(value, mine - other)


def unpaired_floor(interval: Interval) -> float:
    """The smallest difference that two such sides can show if nothing but the recipe is shared: 1.96 standard errors of
    the difference of two independent draws of this side."""
    return Z * float(np.sqrt(2)) * interval.error


def paired_floor(interval: Interval) -> float:
    """The smallest difference that a paired comparison can show: 1.96 standard errors of the difference."""
    return Z * interval.error


def _interval(value: float, values: np.ndarray) -> Interval:
    lower, upper = np.percentile(values, [2.5, 97.5])
    return Interval(value, float(lower), float(upper), float(values.std()))


def _drawn(sides: Sequence[Sequence[Hits]], draws: int, seed: int) -> list[np.ndarray]:
    """Values ``[draws]`` of each side."""
    rng = np.random.default_rng(seed)
    queries = len(sides[0][0].right)
    by_file = [np.empty((len(files), draws)) for files in sides]
    for start in range(0, draws, BLOCK):
        size = min(BLOCK, draws - start)
        times = rng.multinomial(queries, np.full(queries, 1 / queries), size).astype(np.float64)
        for files, values in zip(sides, by_file, strict=True):
            for number, hits in enumerate(files):
                right, given = times @ hits.right, times @ hits.given
                share = np.divide(right, given, out=np.zeros_like(right), where=given > 0)
                values[number, start : start + size] = share.sum(1) / np.maximum((given > 0).sum(1), 1)
    if len({len(files) for files in sides}) == 1:
        weights = _seed_weights(len(sides[0]), draws, rng)  # the same seeds on both sides
        return [(values * weights).sum(0) for values in by_file]
    return [(values * _seed_weights(len(values), draws, rng)).sum(0) for values in by_file]


def _seed_weights(count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Weights ``[count, draws]`` that sum to 1 over the files."""
    if count == 1:
        return np.ones((1, draws))
    return rng.multinomial(count - 1, np.full(count, 1 / count), draws).T / (count - 1)
