"""The ranges of the spec's numbers: each stands with its field, and one walk compares all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from radioplat.errors import Problem

SECONDS = 1e9  # the longest time: 31 years; clocks of the system overflow beyond some 9e9
_KEY = "range"
_LARGEST_INT = 2**63 - 1  # of tables, tensors and generators
_LARGEST_FLOAT = 3.4e38  # of fp32


@dataclasses.dataclass(frozen=True)
class Range:
    """What numbers a field takes: finite ones inside bounds, of which None is none.

    Attributes:
        at_least, at_most: the bounds belong to the range.
        above, below: these do not.
        also: numbers outside that have a meaning of their own.
        hint: what to do about any other.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    also: tuple[float, ...] = ()
    hint: str = ""

    def fault(self, value: float) -> str:
        """What is wrong with ``value``; empty if nothing is."""
        if value in self.also:
            return ""
        if isinstance(value, float) and not math.isfinite(value):
            return f"must be a finite number, not {value}"
        largest = _LARGEST_INT if isinstance(value, int) else _LARGEST_FLOAT
        inside = (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )
        if inside and abs(value) > largest:
            return f"must be at most {largest}, not {_shown(value)}"
        return "" if inside else f"must be {self}, not {_shown(value)}"

    def __str__(self) -> str:
        bounds = ("at least", self.at_least), ("above", self.above), ("at most", self.at_most), ("below", self.below)
        inside = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        return " or ".join([inside, *(f"{value:g}" for value in self.also)])


def number(default: Any, **bounds: Any) -> Any:
    """A dataclass's field of numbers.

    Args:
        default: the default, or what makes one: of a list or a mapping, whose numbers then have these bounds each.
        bounds: the fields of :class:`Range`; none where any finite number will do.
    """
    metadata = {_KEY: Range(**bounds)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def range_of(field: dataclasses.Field[Any]) -> Range | None:
    """The range of a field; None where it was not made by :func:`number`."""
    return field.metadata.get(_KEY)


def range_problems(value: Any, path: str = "", limits: Range | None = None) -> Iterator[Problem]:
    """A problem for each number in ``value`` that is outside the range of its field, by the field's path.

    Args:
        value: a dataclass of the spec, or what one of its fields holds.
        path: of ``value``; empty at the top.
        limits: of numbers in ``value``; None: any finite number, as in arguments that are passed on.
    """
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from range_problems(getattr(value, field.name), _join(path, field.name), range_of(field))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from range_problems(inner, _join(path, str(key)), limits)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from range_problems(inner, f"{path}[{i}]", limits)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        limits = limits or Range()
        if fault := limits.fault(value):
            yield Problem(fault, path, limits.hint)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: float) -> str:
    """A number as text, shortened where it has more digits than a message needs."""
    return str(value) if abs(value) < 10**30 else f"{'-' if value < 0 else ''}1e{math.log10(abs(value)):.0f}"
