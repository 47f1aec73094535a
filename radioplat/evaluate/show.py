"""An evaluation in the terminal."""

from __future__ import annotations

from radioplat import terminal
from radioplat.evaluate.run import EvaluateResult
from radioplat.evaluate.tables import all_tables
from radioplat.track.report import show_cell


def show(result: EvaluateResult) -> None:
    """Print the tables of the report."""
    for table in all_tables(result.found):
        rows = [[show_cell(c) for c in row] for row in table.rows]
        terminal.show_table(table.title, list(table.columns), rows, table.note)
    for line in result.found.absent:
        terminal.say(line)
    terminal.say(f"report: {result.report}")
