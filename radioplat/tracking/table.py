"""Tables of results, for the terminal and for HTML pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radioplat.common import terminal


@dataclass(frozen=True)
class Table:
    """One table of results.

    Attributes:
        columns: headings; the first column names the row.
        rows: cells, see :func:`show_cell`.
        title: heading above the table.
        note: a line below it, for example the definition of a measure.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    note: str = ""

    def show(self, with_note: bool = True) -> None:
        """Print the table on the terminal."""
        rows = [[show_cell(cell) for cell in row] for row in self.rows]
        terminal.show_table(self.title, list(self.columns), rows, self.note if with_note else "")


def show_cell(value: Any) -> str:
    """Format a cell: numbers with four significant digits and thousands separators, a dash for None."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{digits}f}"
