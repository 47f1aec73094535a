"""An evaluation in the terminal."""

from __future__ import annotations

from radioplat import terminal
from radioplat.evaluate.run import EvaluateResult
from radioplat.evaluate.side_by_side import models_table, reasons
from radioplat.evaluate.tables import all_tables
from radioplat.track.report import show_cell


def show(result: EvaluateResult) -> None:
    """Print the tables of the report; of several models the one that has them side by side."""
    for table in [models_table(result.models)] if result.models else all_tables(result.found):
        rows = [[show_cell(c) for c in row] for row in table.rows]
        if result.models:  # many columns: what belongs together goes below each other
            rows = [[c.replace(" (", "\n(").replace(" / ", " /\n").replace(", ", ",\n") for c in row] for row in rows]
        terminal.show_table(table.title, list(table.columns), rows, table.note)
    for line in [*reasons(result.models), *result.found.absent]:
        terminal.say(line)
    terminal.say(f"report: {result.report}")
