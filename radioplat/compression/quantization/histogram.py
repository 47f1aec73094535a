"""Largest magnitude of a tensor over many batches, and a histogram of all magnitudes up to it."""

from __future__ import annotations

import torch

BINS = 2048


class Magnitudes:
    """Statistics of a tensor's absolute values, from two passes over the same batches.

    :meth:`update_amax` finds the largest in the first pass; :meth:`update_counts` fills the histogram in the second,
    whose bins are fixed by then, so the order of batches has no effect.

    Attributes:
        amax: the largest so far; 0 before the first batch.
        finite: False after an infinite value or NaN.
        counts: number of values in equal bins from 0 to ``amax``, float64 ``[BINS]``.
    """

    def __init__(self) -> None:
        self.amax = 0.0
        self.finite = True
        self.counts = torch.zeros(BINS, dtype=torch.float64)

    @property
    def width(self) -> float:
        """Width of a bin."""
        return self.amax / BINS

    def update_amax(self, x: torch.Tensor) -> None:
        """Update :attr:`amax` and :attr:`finite` by the values of ``x``."""
        most = float(x.detach().abs().max())
        self.finite &= most < float("inf")  # also False for NaN
        self.amax = max(self.amax, most)

    def update_counts(self, x: torch.Tensor) -> None:
        """Add the values of ``x`` to the histogram."""
        if self.amax > 0:
            values = x.detach().abs().flatten().float().cpu()
            self.counts += torch.histc(values, BINS, 0.0, self.amax).double()

    def centers(self) -> torch.Tensor:
        """Return the centers of the bins, float64 ``[BINS]``."""
        return (torch.arange(BINS, dtype=torch.float64) + 0.5) * self.width
