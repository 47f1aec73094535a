"""Magnitudes of a tensor as it passes: the largest, and a histogram of all up to that."""

from __future__ import annotations

import torch

BINS = 2048


class Magnitudes:
    """What is known of one tensor's absolute values.

    The images pass twice: :meth:`look` finds the largest, then :meth:`count` fills the histogram, whose bins are fixed
    by then, so that the order of batches changes nothing.

    Attributes:
        amax: the largest seen; 0 before any.
        counts: float64 ``[BINS]``, of values in equal bins from 0 to ``amax``.
    """

    def __init__(self) -> None:
        self.amax = 0.0
        self.finite = True
        self.seen = 0
        self.counts = torch.zeros(BINS, dtype=torch.float64)

    @property
    def width(self) -> float:
        """Of a bin."""
        return self.amax / BINS

    def look(self, x: torch.Tensor) -> None:
        """Take ``x`` into account for :attr:`amax`."""
        most = float(x.detach().abs().max())
        self.finite &= most < float("inf")  # false of NaN, too
        self.amax = max(self.amax, most)
        self.seen += x.numel()

    def count(self, x: torch.Tensor) -> None:
        """Add the values of ``x`` to the histogram."""
        values = x.detach().abs().flatten().float().cpu()
        if self.amax > 0:
            self.counts += torch.histc(values, BINS, 0.0, self.amax).double()

    def centers(self) -> torch.Tensor:
        """Float64 ``[BINS]``: the middle of each bin."""
        return (torch.arange(BINS, dtype=torch.float64) + 0.5) * self.width
