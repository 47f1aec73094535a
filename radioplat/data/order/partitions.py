"""Partition and view size of each micro-batch: a pure function of seed and step, at any world size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Draw = tuple[tuple[int, float], ...]  # (size, probability) pairs; empty: the view is not used

_TAG = 0x9A27  # separates these draws from those keyed by (seed, step, micro-batch)


def partition_of(seed: int, step: int, counts: Sequence[int]) -> np.ndarray:
    """Return the partition of each micro-batch of a global step, without padding: int64 ``[G]``.

    Args:
        seed: ``train.seed``.
        counts: micro-batches of each partition; their sum is G.
    """
    draw = np.random.default_rng(np.random.SeedSequence([seed, step, 0, _TAG]))
    return draw.permutation(np.repeat(np.arange(len(counts)), counts))


class Stretch(NamedTuple):
    """The sizes of a view from step ``first`` on, until the next stretch begins.

    Attributes:
        first: global step.
        seed: ``train.seed``.
        parts: for each partition, its number of micro-batches and the distribution of the size.
    """

    first: int
    seed: int
    parts: tuple[tuple[int, Draw], ...]

    def draw_of(self, step: int, place: int) -> Draw:
        """Return the distribution of the size at micro-batch ``place`` of ``step``; empty if the view is not used."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        counts = [count for count, _ in self.parts]
        return self.parts[int(partition_of(self.seed, step, counts)[place])][1]


def draw_at(plan: Sequence[tuple], micro_batch: int) -> Draw:
    """Return the distribution of a view's size at ``micro_batch``, which must not be padding.

    Args:
        plan: the fields of each :class:`Stretch`, by ``first``, which begins at 0.
    """
    stretches = [Stretch(*fields) for fields in plan]
    step, place = divmod(micro_batch, sum(count for count, _ in stretches[0].parts))
    return next(s for s in reversed(stretches) if s.first <= step).draw_of(step, place)
