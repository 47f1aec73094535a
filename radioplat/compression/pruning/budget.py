"""The amount that a budget asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from radioplat.compression.cost import Cost, cost_of
from radioplat.errors import SpecError
from radioplat.models.student.student import Student
from radioplat.spec.schema.prune import PruneBudget, PruneConfig

STEPS = 7  # halvings of the amount: to within 1 %


def within_budget(
    student: Student, config: PruneConfig, prune: Callable[[PruneConfig], Student]
) -> tuple[Student, PruneConfig]:
    """The student of the least ``amount`` that keeps ``config.budget``, and ``config`` with that amount.

    Args:
        prune: makes a smaller copy of ``student``.

    Raises:
        SpecError: even the largest amount leaves more.
    """
    size, timed = student.architecture.img_size, config.budget.latency is not None
    whole = cost_of(student.backbone, size, timed)
    low, high, best = 0.0, 0.99, None
    for amount in _halvings(low, high):
        asked = replace(config, amount=amount.value)
        small = prune(asked)
        amount.fits = keeps(config.budget, whole, cost_of(small.backbone, size, timed))
        if amount.fits:
            best = small, asked
    if best is None:
        raise SpecError(
            "cannot be kept: with 99 % of its channels gone the backbone still takes more",
            where="prune.budget",
            hint="Name more prune.parts, a smaller prune.granularity, or prune.blocks.",
        )
    return best


def keeps(budget: PruneBudget, before: Cost, after: Cost) -> bool:
    """Whether ``after`` is within the shares of ``before`` that ``budget`` gives."""
    shares = ((budget.params, "params"), (budget.macs, "macs"), (budget.latency, "latency"))
    return all(share is None or getattr(after, name) <= share * getattr(before, name) for share, name in shares)


class _Try:
    def __init__(self, value: float) -> None:
        self.value, self.fits = value, False


def _halvings(low: float, high: float) -> Iterator[_Try]:
    """The largest amount, then a search between: whoever takes one sets whether it fits."""
    last = _Try(high)
    yield last
    for _ in range(STEPS if last.fits else 0):
        middle = _Try((low + high) / 2)
        yield middle
        low, high = (low, middle.value) if middle.fits else (middle.value, high)
