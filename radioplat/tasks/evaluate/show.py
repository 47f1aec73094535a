"""An evaluation in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.evaluate.evaluation import Evaluation
from radioplat.tracking.report.page import show_cell


def show(result: Evaluation) -> None:
    """Print the tables and notes, and where the report is."""
    for table in result.tables():
        rows = [[show_cell(cell) for cell in row] for row in table.rows]
        terminal.show_table(table.title, list(table.columns), rows, table.note)
    for line in result.notes():
        terminal.say(line)
    terminal.say(f"report: {result.report}")
