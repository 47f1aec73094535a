"""Sums of float64 tensors that do not depend on the order of the additions, nor on how they are split over ranks.

A number is cut at fixed powers of two into three parts, the lowest of which is rounded to a multiple of 2**-60. Parts
of the same place are multiples of one power of two, and their sums stay below 2**53 multiples of it, so that float64
adds them without rounding (pre-rounding: Demmel and Nguyen, "Fast Reproducible Floating-Point Summation", ARITH 2013,
section III, here with places that do not depend on the data).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_CUTS = (20, -20, -60)  # exponents of the places, from the highest
_ADDITIONS = 2**12  # most additions before carries: parts of a place are below 2**40 of its multiples


def rounded(values: torch.Tensor, exponent: int) -> torch.Tensor:
    """Return float64 ``values``, of magnitudes below 2**(51 + exponent), as multiples of 2**exponent, the even at ties.

    Numbers from 2**(52 + exponent) to 2**(53 + exponent) are multiples of 2**exponent: the addition rounds.
    """
    shift = 1.5 * 2.0 ** (52 + exponent)
    return (values + shift).sub_(shift)


class ExactSum:
    """A sum of float64 tensors of one shape, of magnitudes below 2**60 in total.

    A sum that holds a number that is not finite is not finite.

    Args:
        like: its shape and device are those of the sum, which begins at zero.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self._parts = torch.zeros(len(_CUTS), *like.shape, dtype=torch.float64, device=like.device)
        self._additions = 0

    def add(self, values: torch.Tensor) -> None:
        """Add ``values``; what is below 2**-61 of each is rounded away."""
        rest = values.detach().to(self._parts.device, torch.float64)
        for part, exponent in zip(self._parts, _CUTS, strict=True):
            multiple = rounded(rest, exponent)
            part += multiple
            rest = rest - multiple
        self._carry(1)

    def merge(self, other: ExactSum) -> None:
        """Add another sum, exactly."""
        other._carry(_ADDITIONS)
        self._parts += other._parts.to(self._parts.device)
        self._carry(2)

    def clear(self) -> None:
        """Set the sum to zero."""
        self._parts.zero_()
        self._additions = 0

    def total(self, over_ranks: Callable[[torch.Tensor], torch.Tensor] = lambda parts: parts) -> torch.Tensor:
        """Return the sum, float64; it is a function of the exact sum alone.

        Args:
            over_ranks: returns the sum of a tensor over the ranks, in place or not.
        """
        return self.over_ranks(over_ranks)._value()

    def over_ranks(self, total: Callable[[torch.Tensor], torch.Tensor]) -> ExactSum:
        """Return the sum over all ranks as a new one; ``total`` returns the sum of a tensor over the ranks."""
        self._carry(_ADDITIONS)
        result = ExactSum(self._parts[0])
        result._parts = total(self._parts.clone())
        result._carry(_ADDITIONS)
        return result

    def state(self) -> torch.Tensor:
        """Return all parts, float64 ``[3, ...]`` on the CPU."""
        self._carry(_ADDITIONS)
        return self._parts.cpu().clone()

    def load(self, state: torch.Tensor) -> None:
        """Set the sum to ``state``: parts of :meth:`state`, or the sum itself, of the shape of the sum."""
        self.clear()
        if state.shape == self._parts.shape:
            self._parts.copy_(state)
        else:
            self.add(state)

    def _carry(self, additions: int) -> None:
        """Count additions, and after many of them move what a place cannot hold to the next higher one.

        Each place but the highest then holds a number from 0 to less than one multiple of the next, so that equal sums
        have equal parts.
        """
        self._additions += additions
        if self._additions < _ADDITIONS:
            return
        self._additions = 1
        for i in range(len(_CUTS) - 1, 0, -1):
            exponent = _CUTS[i - 1]
            carried = torch.floor(self._parts[i] * 2.0**-exponent) * 2.0**exponent
            self._parts[i] -= carried
            self._parts[i - 1] += carried

    def _value(self) -> torch.Tensor:
        high, middle, low = self._parts
        return (high + middle) + low
