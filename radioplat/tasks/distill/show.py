"""A finished run in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.launch.driver import RunResult
from radioplat.tracking.report.page import show_cell


def show(result: RunResult) -> None:
    """Print what its teachers cost, the checkpoint, and what the tasks behind it made."""
    tables = [result.teacher_costs.table()] if result.teacher_costs is not None else []
    for table in tables + (result.account.tables() if result.account else []):
        rows = [[show_cell(cell) for cell in row] for row in table.rows]
        terminal.show_table(table.title, list(table.columns), rows)
    terminal.say(f"{result.checkpoint} at step {result.global_step}")
    for name, found in result.then.items():
        terminal.say(f"{name}: {getattr(found, 'report', None) or found.path}")
