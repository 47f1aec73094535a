"""Sum gradients over micro-batches and ranks so that the result does not depend on how ranks share the micro-batches.

Each gradient of a micro-batch is rounded to a multiple of a power of two, the quantum of its tensor, and added in
float64, which is exact while the sum of all magnitudes is at most 2**52 quanta (pre-rounding as in Demmel and Nguyen,
"Fast Reproducible Floating-Point Summation", ARITH 2013). The quantum follows from the tensor's largest gradient in the
step before, which does not depend on the order either. If it was too small for a step, or too coarse, the step is
computed again with the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from radioplat.common import collectives
from radioplat.spec.resolved.zero import BUCKET

_BITS = 52  # a float64 sum of multiples of q is exact while it is at most 2**52 q
_ROOM = 10  # bits by which the largest gradient may grow from one step to the next
_FINEST = 26  # a quantum is at most 2**-26 of the largest gradient: fp32 itself has 24 bits


@dataclass
class GradientPart:
    """Gradients of several tensors in one flat tensor; what lies between them is zero.

    Attributes:
        gradients: fp32 or 16 bits, ``[elements]``: those of one micro-batch.
        means: fp32 ``[elements]``, may be the same tensor: gets the means over all micro-batches.
        places: first element and number of elements of each tensor.
        sums: float64 ``[elements]``.
    """

    gradients: torch.Tensor
    means: torch.Tensor
    places: list[tuple[int, int]]
    sums: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sums = torch.zeros_like(self.means, dtype=torch.float64)
        self._tensors = [self.gradients.narrow(0, *place) for place in self.places]

    def sizes(self) -> list[torch.Tensor]:
        """Return the largest magnitude of each tensor, scalars."""
        return list(torch._foreach_norm(self._tensors, math.inf))

    def add(self, shifts: list[float]) -> None:
        """Add the gradients, rounded by ``shifts``, 1.5 * 2**52 quanta of each tensor."""
        values = self.gradients.double()
        tensors = [values.narrow(0, *place) for place in self.places]
        torch._foreach_add_(tensors, shifts)
        torch._foreach_sub_(tensors, shifts)
        self.sums.add_(values)


def cut(gradients: torch.Tensor, means: torch.Tensor, places: Sequence[tuple[int, int]]) -> list[GradientPart]:
    """Return the parts, each of about :data:`BUCKET` elements, of flat tensors with tensors at ``places`` in order.

    Each part holds as many elements in float64 for a moment, so the flat tensors are not one part.
    """
    parts: list[GradientPart] = []
    waiting: list[tuple[int, int]] = []
    for number, (start, size) in enumerate(places):
        waiting.append((start, size))
        first, end = waiting[0][0], start + size
        if number == len(places) - 1 or end - first >= BUCKET:
            own = [(start - first, size) for start, size in waiting]
            parts.append(GradientPart(gradients[first:end], means[first:end], own))
            waiting = []
    return parts


def clip_factor(norms: Sequence[torch.Tensor], most: float) -> float | None:
    """Return the factor that brings the norm of several tensors down to ``most``, at most 1; None if it is not finite.

    Args:
        norms: of each tensor, scalars.
        most: 0: not limited.
    """
    norm = float(torch.linalg.vector_norm(torch.stack(list(norms))))
    if not norm < math.inf:
        return None
    return min(1.0, most / (norm + 1e-6)) if most else 1.0


class ExactGradients:
    """Sums of the gradients of all trainable tensors.

    Args:
        parts: their tensors are numbered in this order. Gradients are zero at the start, and after each :meth:`add`.
        micro_batches: number of micro-batches of a step over all ranks, at most
            :data:`radioplat.spec.resolved.reduction.MOST_MICRO_BATCHES`.
        own: number of those of this rank, padding included.

    Attributes:
        largest: float64 ``[tensors]`` on the CPU: the magnitudes that the quanta are made for, part of the run's state.
    """

    def __init__(self, parts: Sequence[GradientPart], micro_batches: int, own: int) -> None:
        self._parts, self._micro_batches, self._own = list(parts), micro_batches, own
        self._sizes: torch.Tensor | None = None
        self._added = 0  # gradients since the sums were zero
        self._shifts: list[float] = []  # those of the step, once it has begun
        self._spare = _BITS - math.ceil(math.log2(micro_batches)) - _ROOM
        self.largest = torch.ones(sum(len(part.places) for part in parts), dtype=torch.float64)

    @torch.no_grad()
    def add(self) -> None:
        """Add the gradients of one micro-batch, or of one piece of it, and set them to zero."""
        sizes = torch.stack([size for part in self._parts for size in part.sizes()]).double()
        self._sizes = sizes if self._sizes is None else torch.maximum(self._sizes, sizes)
        self._added += 1
        if not self._shifts:
            self._shifts = (1.5 * 2.0**_BITS * self._quanta()).tolist()
        shifts = iter(self._shifts)
        for part in self._parts:
            part.add([next(shifts) for _ in part.places])
            part.gradients.zero_()

    @torch.no_grad()
    def finish(self) -> bool:
        """Set the means to those over all micro-batches of all ranks, and all sums to zero; every rank must call it.

        Returns:
            False if the quanta did not fit this step: it must be computed again, now with those that do.
        """
        assert self._sizes is not None
        # Ranks might keep different ones of a number and a NaN.
        sizes = self._sizes.nan_to_num(nan=math.inf, posinf=math.inf)
        sizes, added = collectives.maximum(torch.cat([sizes, sizes.new_tensor([self._added])])).cpu().split(len(sizes))
        pieces = max(1, math.ceil(float(added) / self._own))  # of a micro-batch, after memory ran out
        quanta = self._quanta()
        known = torch.isfinite(sizes) & (sizes > 0)
        exact = sizes * (self._micro_batches * pieces) <= quanta * 2.0**_BITS
        fine = quanta <= sizes * 2.0**-_FINEST
        fits = bool((exact & fine | ~known).all())
        # After a decrease the quantum follows by half a step: a smaller one might not fit the next step.
        self.largest = torch.where(known, torch.maximum(sizes, self.largest / 2) if fits else sizes, self.largest)
        if fits:
            for part in self._parts:
                part.means.copy_(collectives.total(part.sums).div_(self._micro_batches))
                part.sums.zero_()
            self._sizes, self._added, self._shifts = None, 0, []
        else:
            self.clear()
        return fits

    def load(self, largest: torch.Tensor | None) -> None:
        """Restore :attr:`largest` from a checkpoint, if it has those of as many tensors."""
        if largest is not None and len(largest) == len(self.largest):
            self.largest, self._shifts = largest.double(), []

    def clear(self) -> None:
        """Set all sums and gradients to zero."""
        for part in self._parts:
            part.sums.zero_()
            part.gradients.zero_()
        self._sizes, self._added, self._shifts = None, 0, []

    def _quanta(self) -> torch.Tensor:
        """Return each tensor's quantum, float64 ``[tensors]``."""
        return torch.ldexp(torch.ones_like(self.largest), torch.frexp(self.largest).exponent - self._spare)
