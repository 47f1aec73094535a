"""Terminal output of ``distill`` and ``train``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.launch.driver import RunResult


def show(result: RunResult) -> None:
    """Print the costs of the teachers, the checkpoint, and the results of the tasks in ``distill.then``."""
    tables = [result.teacher_costs.table()] if result.teacher_costs is not None else []
    for table in tables + (result.account.tables() if result.account else []):
        table.show(with_note=False)
    terminal.say(f"{result.checkpoint} at step {result.global_step}")
    for name, outcome in result.then.items():
        terminal.say(f"{name}: {getattr(outcome, 'report', None) or outcome.path}")
