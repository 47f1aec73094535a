"""What values a field may take: ``{loguniform: [1e-5, 1e-3]}`` and its kin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radioplat.errors import Problem

KINDS = ("uniform", "loguniform", "quniform", "randint", "choice", "grid")
_LISTED = ("choice", "grid")


@dataclass(frozen=True)
class Domain:
    """The values of one field.

    Attributes:
        path: of the field in the spec.
        kind: one of :data:`KINDS`.
        values: low and high, both of them possible (of quniform the step, too), or everything there is to choose from.
        when: other fields and what they must be; where they are not, the field stays as the spec has it.
    """

    path: str
    kind: str
    values: tuple[Any, ...]
    when: dict[str, Any] = field(default_factory=dict)

    @property
    def listed(self) -> bool:
        """Whether the values are told one by one."""
        return self.kind in _LISTED

    def draw(self, rng: np.random.Generator) -> Any:
        """One value, all of them equally likely (of loguniform their logarithms)."""
        if self.listed:
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values[:2]
        if self.kind == "randint":
            return int(rng.integers(low, high + 1))
        if self.kind == "loguniform":
            return min(max(float(math.exp(rng.uniform(math.log(low), math.log(high)))), low), high)
        if self.kind == "quniform":
            step = self.values[2]
            return low + step * int(rng.integers(int((high - low) / step + 1e-9) + 1))
        return float(rng.uniform(low, high))

    def applies(self, value_of: Any) -> bool:
        """Whether the conditions are met; ``value_of(path)`` is the value that another field has."""
        return all(
            str(_plain(value_of(path))) in [str(one) for one in (wanted if isinstance(wanted, list) else [wanted])]
            for path, wanted in self.when.items()
        )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # of an enum


def read_domain(path: str, said: Any) -> Domain | list[Problem]:
    """A domain as the file says it, or what is wrong with it."""
    where = f"parameters.{path}"
    said = said if isinstance(said, dict) else {}
    kinds = [key for key in said if key != "when"]
    if len(kinds) != 1 or kinds[0] not in KINDS:
        found = f", not {', '.join(map(str, kinds))}" if kinds else ""
        hint = "For example {loguniform: [1e-5, 1e-3]} or {choice: [a, b]}."
        return [Problem(f"one of {', '.join(KINDS)} is needed{found}", where, hint)]
    kind, values, when = kinds[0], said[kinds[0]], said.get("when") or {}
    if not isinstance(when, dict):
        return [Problem("a mapping of fields to values is expected here", f"{where}.when")]
    if not isinstance(values, list):
        return [Problem(f"a list is expected here, not {values!r}", f"{where}.{kind}")]
    domain = Domain(path, kind, tuple(values), when)
    return list(_problems(domain, f"{where}.{kind}")) or domain


def _problems(domain: Domain, where: str) -> Iterator[Problem]:
    values = domain.values
    if domain.listed:
        if not values:
            yield Problem("there is nothing to choose from", where)
        return
    count = 3 if domain.kind == "quniform" else 2
    if len(values) != count or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        yield Problem(f"{count} numbers are needed, not {list(values)}", where)
        return
    if not all(math.isfinite(v) for v in values) or not values[0] < values[1]:
        yield Problem(f"low must be below high, not {list(values[:2])}", where)
    elif domain.kind == "loguniform" and values[0] <= 0:
        yield Problem(f"must be above 0, not {values[0]}", where)
    elif domain.kind == "quniform" and not 0 < values[2] <= values[1] - values[0]:
        yield Problem(f"the step must be above 0 and fit between them, not {values[2]}", where)
    elif domain.kind == "randint" and not all(isinstance(v, int) for v in values):
        yield Problem(f"whole numbers are needed, not {list(values)}", where)
