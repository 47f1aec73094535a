"""Terminal output of ``evaluate``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.evaluate.evaluation import Evaluation


def show(result: Evaluation) -> None:
    """Print the tables, the notes and the path of the report."""
    for table in result.tables():
        table.show()
    for line in result.notes():
        terminal.say(line)
    terminal.say(f"report: {result.report}")
