"""A source of samples in memory, for benchmarks and tests of the sample order."""

from __future__ import annotations

import numpy as np


class ArraySource:
    """An :class:`radioplat.data.order.order.OrderSource` over arrays in memory.

    Args:
        sample_id: int64 ``[N]``, ascending by shard.
        shard: int ``[N]``, the shard of each row; equal values are contiguous.
        weight: float64 ``[N]``, 0 for a rejected row.
    """

    def __init__(self, sample_id: np.ndarray, shard: np.ndarray, weight: np.ndarray) -> None:
        largest = weight.max(initial=0.0)
        self._length = weight / largest if largest > 0 else weight
        self._sample_id = sample_id
        _, starts = np.unique(shard, return_index=True)
        self._bounds = np.append(np.sort(starts), len(sample_id))
        self.shard_lengths = np.array(
            [self._length[a:b].sum() for a, b in zip(self._bounds[:-1], self._bounds[1:], strict=True)], np.float64
        )

    def row_lengths(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`radioplat.data.order.order.OrderSource`."""
        rows = slice(self._bounds[shard], self._bounds[shard + 1])
        return self._sample_id[rows], self._length[rows]
