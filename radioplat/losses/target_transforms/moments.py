"""First and second moments of features, and sums of them over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from radioplat.common.exact_sums import ExactSum

_BLOCK = 4096  # rows widened to float64 at a time


@dataclass
class Moments:
    """Float64 sums over rows of features.

    Attributes:
        count: rows, a scalar.
        total: sum of y, ``[D]``.
        outer: sum of y y^T, ``[D, D]``; or only its diagonal ``[D]``.

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
        """Add ``features`` ``[B, ..., D]``; those without ``weight``, ``[B]`` or by position, may be NaN.

        Both are on one device, which nobody waits for: what has no weight is added as zeros.
        """
        used = (weight > 0).to(features.device)
        used = used.view(*used.shape, *[1] * (features.ndim - 1 - used.ndim)).expand(features.shape[:-1])
        rows = torch.where(used.unsqueeze(-1), features.detach(), 0).flatten(0, -2)
        self.count += used.sum().to(self.count.device)
        for block in rows.split(_BLOCK):
            wide = block.to(self.total.device).double()
            self.total += wide.sum(0)
            if self.full:
                self.outer.addmm_(wide.T, wide)
            else:
                self.outer += wide.square().sum(0)

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


class MomentSums:
    """Moments added up over micro-batches, ranks and steps, with the same result in any order, bit for bit."""

    def __init__(self, width: int, full: bool, device: torch.device | str = "cpu") -> None:
        """Create empty sums, for features of ``width`` dimensions; see :class:`Moments`."""
        self._width, self._full, self._device = width, full, device
        self._sums = [ExactSum(part) for part in Moments.empty(width, full, device).parts()]

    def add(self, features: torch.Tensor, weight: torch.Tensor) -> None:
        """Add the features of one micro-batch; see :meth:`Moments.add`."""
        moments = Moments.empty(self._width, self._full, self._device)
        moments.add(features, weight)
        for mine, part in zip(self._sums, moments.parts(), strict=True):
            mine.add(part)

    def merge(self, other: MomentSums) -> None:
        """Add the sums of ``other``; products of different dimensions only if they are summed here."""
        for mine, theirs in zip(self._sums, other._sums, strict=True):
            mine.merge(theirs)

    def clear(self) -> None:
        """Set all sums to zero."""
        for mine in self._sums:
            mine.clear()

    def over_ranks(self, total: Callable[[torch.Tensor], torch.Tensor]) -> MomentSums:
        """Return the sums over all ranks, on the CPU; ``total`` sums a tensor over ranks, in place or not."""
        result = MomentSums(self._width, self._full)
        for mine, theirs in zip(result._sums, self._sums, strict=True):
            mine.merge(theirs.over_ranks(total))
        return result

    def moments(self) -> Moments:
        """Return the sums, rounded to float64."""
        return Moments(*(mine.total() for mine in self._sums))

    def state(self) -> tuple[torch.Tensor, ...]:
        """Return all parts of the sums of ``count``, ``total`` and ``outer``, float64 on the CPU."""
        return tuple(mine.state() for mine in self._sums)

    def load(self, state: Sequence[torch.Tensor]) -> None:
        """Set the sums to ``state``, from :meth:`state` or :meth:`Moments.parts`."""
        for mine, part in zip(self._sums, state, strict=True):
            mine.load(part)
