"""Assign micro-batches to partitions: each has a fixed share of every global batch, at random positions.

A step has G real micro-batches and partition p has ``c_p = share_p * G`` of them, chosen by a permutation that depends
only on (seed, step), not on the world size or on resumes. Teacher t, in the partitions P_t, sees ``n_t = sum of c_p
over P_t`` micro-batches a step, and there its loss terms are multiplied by ``G / n_t``. A position is in p with
probability ``c_p / G``, so the expected factor at any position is

    sum over P_t of (c_p / G) * (G / n_t) = 1:

the expected gradient is that of all teachers at all micro-batches. A step's mean of the multiplied terms over all G is
the mean of the terms over the n_t micro-batches that the teacher saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radioplat.data.order.partitions import partition_of
from radioplat.spec.resolved.partitions import counts
from radioplat.spec.schema.distill import PartitionConfig


@dataclass(frozen=True)
class Partitions:
    """The partitions of a run; without any, every teacher sees all micro-batches.

    Attributes:
        seed: ``train.seed``.
        micro_batches: real ones of a step, G.
        counts: micro-batches of a step, by partition; their sum is G.
        teachers: names, by partition.
        away: (first step, names of the teachers not used from it on) by step; empty: all are always used.
    """

    seed: int
    micro_batches: int
    counts: tuple[int, ...] = ()
    teachers: tuple[frozenset[str], ...] = ()
    away: tuple[tuple[int, frozenset[str]], ...] = ()

    @classmethod
    def of(
        cls,
        config: Sequence[PartitionConfig],
        seed: int,
        micro_batches: int,
        away: tuple[tuple[int, frozenset[str]], ...] = (),
    ) -> Partitions:
        """Create from a valid ``distill.partitions`` and :func:`radioplat.design.stages.away_by_step`."""
        names = tuple(frozenset(partition.teachers) for partition in config)
        return cls(seed, micro_batches, tuple(counts(config, micro_batches)), names, away)

    def seen_by(self, teacher: str) -> int:
        """Return the micro-batches of each step that ``teacher`` sees; all if no partition names it."""
        counts = [count for count, names in zip(self.counts, self.teachers, strict=True) if teacher in names]
        return sum(counts) if counts else self.micro_batches

    def of_step(self, step: int) -> np.ndarray:
        """Return the partition of each real micro-batch of global step ``step``, int64 ``[G]``."""
        return partition_of(self.seed, step, self.counts)

    def factors(self, micro_batch: int) -> dict[str, float]:
        """Return the factor of each teacher's terms at a real micro-batch: 0 if unused; 1 if absent."""
        step, place = divmod(micro_batch, self.micro_batches)
        away = next((names for first, names in reversed(self.away) if first <= step), frozenset())
        factors: dict[str, float] = {}
        if self.counts:
            here = self.teachers[self.of_step(step)[place]]
            named = frozenset().union(*self.teachers)
            factors = {name: self.micro_batches / self.seen_by(name) if name in here else 0.0 for name in sorted(named)}
        return factors | dict.fromkeys(sorted(away), 0.0)
