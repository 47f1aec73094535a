"""Terminal output of ``radioplat fork``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.fork.report import arms_tables
from radioplat.tasks.fork.result import ForkResult


def show(result: ForkResult) -> None:
    """Print the arms side by side."""
    for table in arms_tables(result):
        table.show()
    for arm in result.arms:
        terminal.say(f"{arm.name}: {arm.student}")
        if arm.same_as:
            terminal.say(f"  its weights are those of {arm.same_as}: its changes had no effect here")
    if result.evaluation is not None:
        terminal.say(f"evaluation: {result.evaluation}")
    terminal.say(f"report: {result.report}")
