"""Which micro-batch of a step belongs to which partition, and at what size it shows a view.

A pure function of seed and step, whatever the world size and wherever the run was resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Draw = tuple[tuple[int, float], ...]  # (size, probability) pairs; empty: the view is not needed

_TAG = 0x9A27  # keeps these draws apart from those keyed by (seed, step, micro-batch)


def partition_of(seed: int, step: int, counts: Sequence[int]) -> np.ndarray:
    """int64 ``[G]``: the partition of each real micro-batch of a global step.

    Args:
        seed: ``train.seed``.
        counts: micro-batches of each partition; their sum is G.
    """
    draw = np.random.default_rng(np.random.SeedSequence([seed, step, 0, _TAG]))
    return draw.permutation(np.repeat(np.arange(len(counts)), counts))


class Stretch(NamedTuple):
    """What a view is in the steps from ``first`` on, until the next stretch begins.

    Attributes:
        first: global step.
        seed: ``train.seed``.
        parts: micro-batches of each partition, and what its size is drawn from there.
    """

    first: int
    seed: int
    parts: tuple[tuple[int, Draw], ...]

    def draw_of(self, step: int, place: int) -> Draw:
        """What the size is drawn from at micro-batch ``place`` of ``step``; empty where the view is left out."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        counts = [count for count, _ in self.parts]
        return self.parts[int(partition_of(self.seed, step, counts)[place])][1]


def draw_at(plan: Sequence[tuple], micro_batch: int) -> Draw:
    """What a view's size is drawn from at a real ``micro_batch``.

    Args:
        plan: the fields of each :class:`Stretch`, by ``first``, which begins at 0.
    """
    stretches = [Stretch(*fields) for fields in plan]
    step, place = divmod(micro_batch, sum(count for count, _ in stretches[0].parts))
    return next(s for s in reversed(stretches) if s.first <= step).draw_of(step, place)
