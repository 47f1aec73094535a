"""The workers of a run that share a piece of work, each on its own device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from radioplat.common import collectives

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ranks:
    """This worker among ``count``; by default a process alone, on the CPU.

    Every rank must call the same methods in the same order, in the thread that uses the default process group.

    Attributes:
        device: of this rank.
        waiting: context of each wait for the other ranks.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = torch.device("cpu")
    waiting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext

    def share(self, items: int, batch: int = 1) -> np.ndarray:
        """Return the positions of this rank's items, int64: batches of consecutive items go to the ranks in turn.

        So a batch has the same items whatever the number of ranks.
        """
        positions = np.arange(items)
        return positions[positions // batch % self.count == self.rank]

    def alike(self, action: Callable[[], Result]) -> Result:
        """Return the result of ``action`` on this rank; it may not use collectives.

        Raises:
            RadioplatError, OSError: on every rank, if ``action`` raised one on any of them.
        """
        return collectives.alike(action, self.waiting)

    def from_first(self, action: Callable[[], Result]) -> Result:
        """Call ``action`` on rank 0 only and return its result (picklable) on every rank.

        Raises:
            RadioplatError, OSError: on every rank, if ``action`` raised one.
        """
        answer: Any = self.alike(lambda: action() if self.rank == 0 else None)
        with self.waiting():
            return collectives.broadcast_object(answer) if self.count > 1 else answer

    def objects(self, value: Result) -> list[Result]:
        """Return the ``value`` of every rank, by rank; for small picklable objects."""
        with self.waiting():
            return collectives.gather_objects(value) if self.count > 1 else [value]

    def rows(self, rows: torch.Tensor, counts: Sequence[int] | None = None) -> torch.Tensor:
        """Return the rows ``[n, ...]`` of every rank, one rank after the other, on the device of ``rows``.

        Args:
            counts: n of every rank, if it is known.
        """
        counts = self.objects(len(rows)) if counts is None else counts
        with self.waiting():
            return torch.cat(collectives.gather_rows(rows, counts)) if self.count > 1 else rows

    def in_turn(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows ``[N, ...]`` in order, of which this rank has those of :meth:`share`."""
        counts = self.objects(len(rows))
        order = np.argsort(np.concatenate([np.arange(count) * self.count + r for r, count in enumerate(counts)]))
        return self.rows(rows, counts)[torch.from_numpy(order).to(rows.device)]

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``values`` over the ranks, computed in place."""
        with self.waiting():
            return collectives.total(values) if self.count > 1 else values


ALONE = Ranks()
