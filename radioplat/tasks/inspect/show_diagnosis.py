"""A diagnosis in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.inspect.diagnose import Diagnosis
from radioplat.tracking.report.page import show_cell


def show(found: Diagnosis) -> None:
    """The cause in one line, then what shows it, what to do, and where the time went."""
    terminal.say(found.cause)
    for line in found.evidence:
        terminal.say(f"  {line}")
    if found.advice:
        terminal.say(f"What to do: {found.advice}")
    for table in found.account.tables() if found.account else []:
        terminal.show_table(table.title, list(table.columns), [[show_cell(cell) for cell in row] for row in table.rows])
