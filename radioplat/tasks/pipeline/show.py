"""Terminal output of ``pipeline``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.pipeline.pipeline import PipelineReport
from radioplat.tasks.pipeline.record import Record
from radioplat.tasks.pipeline.report import tables_of


def show(report: PipelineReport) -> None:
    """Print the nodes with their costs, and the paths of their results."""
    for table in tables_of(report.nodes, Record(report.folder)):
        table.show()
    for name, path in report.results.items():
        terminal.say(f"{name}: {path}")
    terminal.say(f"report: {report.report}")
