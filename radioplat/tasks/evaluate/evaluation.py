"""Interface of the results of ``evaluate``, for all kinds of models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from radioplat.tracking.table import Table


class Evaluation(Protocol):
    """Results of an evaluation.

    Attributes:
        report: path of ``report.html``.
        metrics: finite values by the names that gates and sweeps compare.
    """

    @property
    def report(self) -> Path:
        """See the class."""
        ...

    @property
    def metrics(self) -> dict[str, float]:
        """See the class."""
        ...

    def tables(self) -> Sequence[Table]:
        """Return the tables that the terminal shows."""
        ...

    def notes(self) -> Sequence[str]:
        """Return lines below the tables: omissions and their reasons."""
        ...

    def figures(self) -> dict[str, float]:
        """Return the values for ``status.json``, by name."""
        ...

    def objectives(self) -> dict[str, float | None]:
        """Return the values of the last student or detector checkpoint for gates and objectives, by their names."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the values for the record of ``compress``, as JSON."""
        ...


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the values that gates can compare."""
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
