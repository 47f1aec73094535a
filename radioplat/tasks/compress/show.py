"""Terminal output of ``compress``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.compress.compress import CompressReport
from radioplat.tasks.compress.tables import tables_of


def show(report: CompressReport) -> None:
    """Print the tables of the chain, and the paths of its results."""
    for table in tables_of(report.entries, report.metric):
        table.show()
    terminal.say(f"student: {report.student}")
    terminal.say(f"report: {report.report}")
