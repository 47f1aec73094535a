"""First and second moments of features, summed so that any split of the same data gives the same result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_BLOCK = 4096  # rows widened to float64 at a time


@dataclass
class Moments:
    """Float64 sums over rows of features.

    Attributes:
        count: rows, a scalar.
        total: sum of y, ``[D]``.
        outer: sum of y y^T, ``[D, D]``; or only its diagonal ``[D]``.

    Features are bf16: their products have 16 bits of mantissa, so float64 sums of millions are exact, or nearly so, in
    any order.
    """

    count: torch.Tensor
    total: torch.Tensor
    outer: torch.Tensor

    @classmethod
    def empty(cls, width: int, full: bool, device: torch.device | str = "cpu") -> Moments:
        """Create empty sums, for features of ``width`` dimensions."""
        shape = (width, width) if full else (width,)
        kind = {"dtype": torch.float64, "device": device}
        return cls(torch.zeros((), **kind), torch.zeros(width, **kind), torch.zeros(shape, **kind))

    @property
    def full(self) -> bool:
        """True if products of different dimensions are summed too."""
        return self.outer.ndim == 2

    def add(self, features: torch.Tensor, weight: torch.Tensor) -> None:
        """Add ``features`` ``[B, ..., D]``; those without ``weight``, ``[B]`` or by position, may be NaN."""
        rows = features.detach()[(weight > 0).to(features.device)].flatten(0, -2)
        self.count += len(rows)
        for block in rows.split(_BLOCK):
            wide = block.to(self.total.device).double()
            self.total += wide.sum(0)
            if self.full:
                self.outer.addmm_(wide.T, wide)
            else:
                self.outer += wide.square().sum(0)

    def merge(self, other: Moments) -> None:
        """Add the sums of ``other``."""
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            mine += theirs.to(mine.device)

    def clear(self) -> None:
        """Set all sums to zero."""
        for part in self.parts():
            part.zero_()

    def reduced(self, total: Callable[[torch.Tensor], torch.Tensor]) -> Moments:
        """Return the sum over ranks, on the CPU; ``total`` is a function that sums a tensor over ranks, in place or
        not."""
        return Moments(*(total(part.clone()).cpu() for part in self.parts()))

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ``count``, ``total`` and ``outer``."""
        return self.count, self.total, self.outer

    def mean(self) -> torch.Tensor:
        """Return the mean ``[D]``; 0 without data."""
        return self.total / self.count.clamp(min=1)

    def variance(self) -> torch.Tensor:
        """Return the population variance of each dimension, ``[D]``."""
        squares = self.outer.diagonal() if self.full else self.outer
        return (squares / self.count.clamp(min=1) - self.mean().square()).clamp(min=0)

    def covariance(self, sample: bool = False) -> torch.Tensor:
        """Return the covariance ``[D, D]``: of the population, or with n - 1 of the ``sample``.

        Raises:
            ValueError: only the diagonal was summed.
        """
        if not self.full:
            raise ValueError("these moments hold only a diagonal")
        mean = self.mean()
        matrix = self.outer / self.count.clamp(min=1) - torch.outer(mean, mean)
        factor = self.count / (self.count - 1).clamp(min=1) if sample else 1.0
        return factor * (matrix + matrix.T) / 2
