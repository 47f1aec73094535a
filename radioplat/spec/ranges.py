"""Ranges of numeric spec fields, declared with the field and checked for the whole spec at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from radioplat.errors import Problem

SECONDS = 1e9  # maximum of time fields, 31 years; system clocks overflow at about 9e9
_KEY = "range"
_LARGEST_INT = 2**63 - 1  # int64, as in tables, tensors and random generators
_LARGEST_FLOAT = 3.4e38  # maximum of fp32


@dataclasses.dataclass(frozen=True)
class Range:
    """Valid values of a numeric field: finite numbers inside the bounds; a bound of None is no bound.

    Attributes:
        at_least, at_most: inclusive bounds.
        above, below: exclusive bounds.
        also: further valid values outside the bounds.
        hint: advice for the user about invalid values.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    also: tuple[float, ...] = ()
    hint: str = ""

    def fault(self, value: float) -> str:
        """Return a message if ``value`` is invalid, else an empty string."""
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
    """Declare a numeric dataclass field.

    Args:
        default: the default value; or a factory of a list or mapping, whose numbers then all have these bounds.
        bounds: the fields of :class:`Range`; none for any finite number.
    """
    metadata = {_KEY: Range(**bounds)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def range_of(field: dataclasses.Field[Any]) -> Range | None:
    """Return the range of a field; None if it was not declared by :func:`number`."""
    return field.metadata.get(_KEY)


def range_problems(value: Any, path: str = "", limits: Range | None = None) -> Iterator[Problem]:
    """Yield a problem, with the field path, for each number in ``value`` outside its field's range.

    Args:
        value: a dataclass of the spec, or the value of one of its fields.
        path: field path of ``value``; empty at the top.
        limits: range of the numbers in ``value``; None: any finite number.
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
    """Return a number as text, in scientific notation if it is very long."""
    return str(value) if abs(value) < 10**30 else f"{'-' if value < 0 else ''}1e{math.log10(abs(value)):.0f}"
