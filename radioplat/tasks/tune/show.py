"""Terminal output of ``tune``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.tune.sweep_files import PAGE, PICTURE, command_of, tables_of
from radioplat.tasks.tune.tune import TuneReport


def show(report: TuneReport) -> None:
    """Print the table of trials, and the paths of the sweep's files."""
    home, best = report.plan.home, report.best
    for table in tables_of(report.plan, report.trials):
        table.show()
    if best is None:
        terminal.say("no trial has finished yet")
        return
    terminal.say(f"picture: {home / PICTURE}")
    terminal.say(f"report: {home / PAGE}")
    terminal.say(f"best: {best.name}; its student: {best.student}")
    terminal.say(f"in full: {command_of(report.plan)}")
