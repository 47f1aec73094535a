"""The rule of ``distill.partitions``: how many micro-batches a share is, and what is wrong with those of a spec."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from radioplat.errors import Problem
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.schema.distill import PartitionConfig
from radioplat.spec.schema.root import Spec

TOLERANCE = 1e-6  # of a share, so that 0.333333 is a third
_WHERE = "distill.partitions"
_MOST = 10_000  # micro-batches of a step; what needs more is not proposed


def counts(partitions: Sequence[PartitionConfig], micro_batches: int) -> list[int]:
    """Micro-batches of each partition out of those of a step; they add up where the spec was checked."""
    return [round(partition.share * micro_batches) for partition in partitions]


def partition_problems(spec: Spec) -> Iterator[Problem]:
    """Shares that do not add up or do not come whole, names of nobody, micro-batches that nobody sees."""
    partitions, names = spec.distill.partitions, teacher_names(spec.distill.teacher)
    if not partitions:
        return
    if not names:
        yield Problem("there are no teachers to assign", _WHERE, "Give distill.teacher, or leave this out.")
        return
    for i, partition in enumerate(partitions):
        for name in partition.teachers:
            if name not in names:
                yield Problem(f"no teacher is called {name!r}", f"{_WHERE}[{i}].teachers", f"Teachers: {_list(names)}.")
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
        return  # reported where it is wrong
    micro_batches = whole // size
    for i, (partition, count) in enumerate(zip(partitions, counts(partitions, micro_batches), strict=True)):
        asked = partition.share * micro_batches
        if count < 1 or round(abs(asked - count), 9) > TOLERANCE * micro_batches:
            yield Problem(
                f"{partition.share:g} of the {micro_batches} micro-batches of a step is {asked:g}, not a whole number",
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
    """The simplest of a few fractions that is as good as ``share``."""
    candidates = (Fraction(share).limit_denominator(10**digits) for digits in range(1, 7))
    return next(found for found in candidates if abs(found - Fraction(share)) <= TOLERANCE)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
