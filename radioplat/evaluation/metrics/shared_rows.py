"""Rows of a split that several ranks hold, read in the order of the split."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from radioplat.common.ranks import Ranks


class SharedRows:
    """Rows of all ranks, each of which has some of them; every rank must make it.

    Args:
        rows: this rank's, ``[n, ...]``, on the CPU. They stay there.
        ids: of its rows, int64 ``[n]``, ascending; no two rows of all ranks have the same.
    """

    def __init__(self, ranks: Ranks, rows: Tensor, ids: Tensor) -> None:
        self._ranks = ranks
        # A rank without an image does not know the shape of a row.
        shape = max(ranks.objects((len(rows), rows.shape[1:])), key=lambda each: each[0] > 0)[1]
        self._own = rows if len(rows) else rows.new_zeros((0, *shape))
        owners = ranks.rows(torch.full_like(ids, ranks.rank))
        self._owners = owners[ranks.rows(ids).argsort()]  # the rank of each row, in the order of the split

    def __len__(self) -> int:
        return len(self._owners)

    def blocks(self, size: int) -> Iterator[Tensor]:
        """Yield ``size`` rows at a time, the last block may have fewer, on this rank's device and in order.

        No rank ever has more than a block of the others' rows here. Every rank must take all blocks.
        """
        first = 0
        for owners in self._owners.split(size) if len(self) else ():
            counts = owners.bincount(minlength=self._ranks.count).tolist()
            own = self._own[first : first + counts[self._ranks.rank]].to(self._ranks.device)
            first += len(own)
            order = owners.argsort(stable=True).argsort().to(own.device)  # of each row, its place among those gathered
            yield self._ranks.rows(own, counts)[order]

    def gathered(self) -> Tensor:
        """Return all rows, on the device; for small ones, such as labels."""
        blocks = list(self.blocks(max(1, len(self))))
        return blocks[0] if blocks else self._own.to(self._ranks.device)
