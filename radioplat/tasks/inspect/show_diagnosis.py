"""A diagnosis in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.inspect.diagnose import Diagnosis
from radioplat.tracking.report.page import show_cell


def show(diagnosis: Diagnosis) -> None:
    """The cause in one line, then what shows it, what to do, and where the time went."""
    terminal.say(diagnosis.cause)
    for line in diagnosis.evidence:
        terminal.say(f"  {line}")
    if diagnosis.advice:
        terminal.say(f"What to do: {diagnosis.advice}")
    for table in diagnosis.account.tables() if diagnosis.account else []:
        terminal.show_table(table.title, list(table.columns), [[show_cell(cell) for cell in row] for row in table.rows])
