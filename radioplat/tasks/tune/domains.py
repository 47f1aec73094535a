"""Domains of search: the possible values of a spec field, for example ``{loguniform: [1e-5, 1e-3]}``."""

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
        values: low and high, both inclusive (for quniform also the step), or the list of choices.
        when: conditions, values of other fields; if one is not met, the field keeps the spec's value.
    """

    path: str
    kind: str
    values: tuple[Any, ...]
    when: dict[str, Any] = field(default_factory=dict)

    @property
    def listed(self) -> bool:
        """Whether ``values`` is a list of choices."""
        return self.kind in _LISTED

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value, uniformly; for loguniform, uniformly in the logarithm."""
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
        """Return whether the conditions are met; ``value_of(path)`` returns the value of another field."""
        for path, wanted in self.when.items():
            value = value_of(path)
            if str(getattr(value, "value", value)) not in map(str, wanted if isinstance(wanted, list) else [wanted]):
                return False
        return True


def read_domain(path: str, entry: Any) -> Domain | list[Problem]:
    """Read the domain of field ``path`` from its entry in the search space file; return the problems if it is wrong."""
    where = f"parameters.{path}"
    entry = entry if isinstance(entry, dict) else {}
    kinds = [key for key in entry if key != "when"]
    if len(kinds) != 1 or kinds[0] not in KINDS:
        unknown = f", not {', '.join(map(str, kinds))}" if kinds else ""
        hint = "For example {loguniform: [1e-5, 1e-3]} or {choice: [a, b]}."
        return [Problem(f"one of {', '.join(KINDS)} is needed{unknown}", where, hint)]
    kind, values, when = kinds[0], entry[kinds[0]], entry.get("when") or {}
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
            yield Problem("the list is empty", where)
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
