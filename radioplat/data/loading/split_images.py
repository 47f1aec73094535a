"""Iterate over the images of a split as evaluation views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from radioplat.common.ranks import Ranks
from radioplat.data.batch import Batch
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.threads import load_batches


@dataclass(frozen=True)
class Images:
    """Rows of one split as evaluation views.

    Attributes:
        rows: sample ids, int64 ``[N]``.
        reader: reads and decodes them.
    """

    rows: np.ndarray
    reader: MicroBatchReader
    batch_size: int
    threads: int

    def share(self, ranks: Ranks) -> Images:
        """Return the images of this rank: whole batches, each with the same images whatever the number of ranks."""
        return replace(self, rows=self.rows[ranks.share(len(self.rows), self.batch_size)])

    def batches(self) -> Iterator[Batch]:
        """Yield batches in order; unreadable samples have weight 0."""
        parts = [self.rows[i : i + self.batch_size] for i in range(0, len(self.rows), self.batch_size)]
        return load_batches(self.reader.read_rows, parts, threads=self.threads, prefetch=4)
