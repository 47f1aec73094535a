"""The fixed, periodic interleaving of sources."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd, lcm

import numpy as np

from radioplat.errors import SpecError

MAX_PERIOD = 10_000


def integer_shares(scale_factors: Sequence[float]) -> list[int]:
    """Return integers with a sum of at most 10,000 whose ratios are closest to those of ``scale_factors``.

    Exact for ratios of small numbers (2.0 : 1.0 -> 2 : 1, 0.3 : 0.1 -> 3 : 1).

    Raises:
        SpecError: a factor is not a positive finite number, or there are more than 10,000 sources.
    """
    for i, factor in enumerate(scale_factors):
        if not (np.isfinite(factor) and factor > 0):
            raise SpecError(
                f"scale_factor must be a positive number, not {factor}",
                where=f"tar_data_sources[{i}].scale_factor",
                hint="Remove the source to leave it out.",
            )
    if len(scale_factors) > MAX_PERIOD:
        raise SpecError(f"at most {MAX_PERIOD} sources can be mixed", where="tar_data_sources")
    exact = [Fraction(f).limit_denominator(1_000_000) for f in scale_factors]
    common = lcm(*[f.denominator for f in exact])
    whole = [int(f * common) for f in exact]
    divisor = reduce(gcd, whole)
    if divisor and sum(whole) // divisor <= MAX_PERIOD and min(whole) > 0:
        return [w // divisor for w in whole]
    # Largest-remainder method, with every source at least once in a period.
    total = sum(scale_factors)
    remaining = MAX_PERIOD - len(scale_factors)
    ideal = [f / total * remaining for f in scale_factors]
    shares = [1 + int(x) for x in ideal]
    by_remainder = sorted(range(len(ideal)), key=lambda i: (-(ideal[i] - int(ideal[i])), i))
    for i in by_remainder[: MAX_PERIOD - sum(shares)]:
        shares[i] += 1
    divisor = reduce(gcd, shares)
    return [s // divisor for s in shares]


@dataclass(frozen=True)
class Mixture:
    """The source of each position of the order: a period that repeats.

    Attributes:
        shares: number of positions of each source in a period.
        pattern: int32 ``[period]``, the source of each position in the period.
        rank: int64 ``[period]``, number of earlier positions of the same source in the period.
    """

    shares: tuple[int, ...]
    pattern: np.ndarray
    rank: np.ndarray

    @property
    def period(self) -> int:
        """Number of positions in a period."""
        return len(self.pattern)

    @classmethod
    def of(cls, scale_factors: Sequence[float]) -> Mixture:
        """Return the interleaving by P-fair scheduling (Baruah et al. 1996).

        Pick j of source i (from 0) is released at j*P/n_i and due at (j+1)*P/n_i. Taking the released pick with the
        earliest deadline keeps each source within 1 of its share at every position.
        """
        shares = integer_shares(scale_factors)
        period = sum(shares)
        pattern = np.empty(period, np.int32)
        rank = np.empty(period, np.int64)
        waiting = [(0, i, 0) for i in range(len(shares))]  # release position of pick j, source, j
        heapq.heapify(waiting)
        ready: list[tuple[Fraction, int, int]] = []  # due, source, j
        for place in range(period):
            while waiting and waiting[0][0] <= place:
                _, i, j = heapq.heappop(waiting)
                heapq.heappush(ready, (Fraction((j + 1) * period, shares[i]), i, j))
            _, i, j = heapq.heappop(ready)
            pattern[place], rank[place] = i, j
            if j + 1 < shares[i]:
                heapq.heappush(waiting, ((j + 1) * period // shares[i], i, j + 1))
        return cls(tuple(shares), pattern, rank)
