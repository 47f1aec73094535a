"""Which teachers see which micro-batches: a partition has a fixed share of every global batch, its places drawn anew.

A step has G real micro-batches and partition p has ``c_p = share_p * G`` of them. Which ones says a permutation that
follows from (seed, step), whatever the world size and wherever the run was resumed. Teacher t, named by the partitions
P_t, sees ``n_t = sum of c_p over P_t`` micro-batches a step, and there its loss terms are multiplied by ``G / n_t``.
A place lies in p with probability ``c_p / G``, so the expected factor at any place is

    sum over P_t of (c_p / G) * (G / n_t) = 1:

the expected gradient is the one of every teacher at every micro-batch. A step's mean of the multiplied terms over all G
is the plain mean of the terms over the n_t that the teacher saw.
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
    """The partitions of a run; without any, every teacher sees everything.

    Attributes:
        seed: ``train.seed``.
        micro_batches: real ones of a step, G.
        counts: micro-batches of a step, by partition; their sum is G.
        teachers: names, by partition.
        away: from which step on who does not teach, by step; empty: all do.
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
        """From a checked ``distill.partitions``; ``away`` is that of :func:`radioplat.design.stages.away_by_step`."""
        names = tuple(frozenset(partition.teachers) for partition in config)
        return cls(seed, micro_batches, tuple(counts(config, micro_batches)), names, away)

    def seen_by(self, teacher: str) -> int:
        """Micro-batches that ``teacher`` sees of each step; one that no partition names sees all."""
        mine = [count for count, names in zip(self.counts, self.teachers, strict=True) if teacher in names]
        return sum(mine) if mine else self.micro_batches

    def of_step(self, step: int) -> np.ndarray:
        """int64 ``[G]``: the partition of each real micro-batch of global step ``step``."""
        return partition_of(self.seed, step, self.counts)

    def factors(self, micro_batch: int) -> dict[str, float]:
        """Return the factor of each teacher's terms at a real micro-batch: 0 if not asked; absent means always 1."""
        step, place = divmod(micro_batch, self.micro_batches)
        away = next((names for first, names in reversed(self.away) if first <= step), frozenset())
        factors: dict[str, float] = {}
        if self.counts:
            here = self.teachers[self.of_step(step)[place]]
            named = frozenset().union(*self.teachers)
            factors = {name: self.micro_batches / self.seen_by(name) if name in here else 0.0 for name in sorted(named)}
        return factors | dict.fromkeys(sorted(away), 0.0)
