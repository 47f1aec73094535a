"""Shares of ``distill.partitions`` as numbers of micro-batches, and the checks of that section."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from radioplat.errors import Problem
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.schema.distill import PartitionConfig
from radioplat.spec.schema.root import Spec

TOLERANCE = 1e-6  # tolerance of a share: 0.333333 is a third
_WHERE = "distill.partitions"
_MOST = 10_000  # micro-batches of a step; no larger number is proposed


def counts(partitions: Sequence[PartitionConfig], micro_batches: int) -> list[int]:
    """Return the number of micro-batches of each partition in a step; they add up if the spec was checked."""
    return [round(partition.share * micro_batches) for partition in partitions]


def partition_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems: wrong sums, shares that are no whole micro-batches, unknown teachers, unused micro-batches."""
    partitions, names = spec.distill.partitions, teacher_names(spec.distill.teacher)
    if not partitions:
        return
    if not names:
        yield Problem("there are no teachers to assign", _WHERE, "Give distill.teacher, or leave this out.")
        return
    for i, partition in enumerate(partitions):
        for name in partition.teachers:
            if name not in names:
                yield Problem(
                    f"no teacher is called {name!r}", f"{_WHERE}[{i}].teachers", f"Teachers: {', '.join(names)}."
                )
    everywhere = set(names).difference(*(partition.teachers for partition in partitions))
    for i, partition in enumerate(partitions):
        if not partition.teachers and not everywhere:
            hint = "Name a teacher here, or leave one out of every partition: it sees everything."
            yield Problem("no teacher sees these micro-batches", f"{_WHERE}[{i}].teachers", hint)
    yield from _shares(spec)


def _shares(spec: Spec) -> Iterator[Problem]:
    partitions = spec.distill.partitions
    total = math.fsum(partition.share for partition in partitions)
    if round(abs(total - 1), 9) > TOLERANCE:  # rounded: 1 - 0.999999 is a little more than 1e-6
        yield Problem(f"the shares add up to {total:g}, not to 1", _WHERE)
        return
    size, whole = spec.dataset.batch_size, spec.global_batch_size
    if whole % size:
        return  # reported by the check of train.global_batch_size
    micro_batches = whole // size
    for i, (partition, count) in enumerate(zip(partitions, counts(partitions, micro_batches), strict=True)):
        exact = partition.share * micro_batches
        if count < 1 or round(abs(exact - count), 9) > TOLERANCE * micro_batches:
            yield Problem(
                f"{partition.share:g} of the {micro_batches} micro-batches of a step is {exact:g}, not a whole number",
                f"{_WHERE}[{i}].share",
                _remedy(partitions, micro_batches, size),
            )


def _remedy(partitions: Sequence[PartitionConfig], micro_batches: int, batch_size: int) -> str:
    shares = f"shares that are multiples of 1/{micro_batches}"
    unit = math.lcm(*(_fraction(partition.share).denominator for partition in partitions))
    needed = unit * -(-micro_batches // unit)
    if needed > _MOST or needed == micro_batches:
        return f"Take {shares}."
    return f"Take train.global_batch_size={needed * batch_size}, or {shares}."


def _fraction(share: float) -> Fraction:
    """Return the simplest fraction that equals ``share`` within :data:`TOLERANCE`."""
    candidates = (Fraction(share).limit_denominator(10**digits) for digits in range(1, 7))
    return next(fraction for fraction in candidates if abs(fraction - Fraction(share)) <= TOLERANCE)
