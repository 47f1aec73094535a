"""An evaluation in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.evaluate.detector import DetectorReport, tables
from radioplat.tasks.evaluate.detectors import DetectorsReport, side_tables
from radioplat.tasks.evaluate.detectors import remarks as remarks_on_detectors
from radioplat.tasks.evaluate.evaluate import EvaluateResult
from radioplat.tasks.evaluate.side_by_side import models_table, remarks
from radioplat.tasks.evaluate.tables import all_tables, change_table, segmentation_table
from radioplat.tracking.report.page import show_cell


def show(result: EvaluateResult | DetectorReport | DetectorsReport) -> None:
    """Print the tables of the report; of several models the one that has them side by side."""
    if isinstance(result, (DetectorReport, DetectorsReport)):
        if isinstance(result, DetectorsReport):
            shown, lines = side_tables(result), remarks_on_detectors(result)
        else:
            shown, lines = tables(result.result), _left_out(result)
        for table in shown:
            rows = [[show_cell(c) for c in row] for row in table.rows]
            terminal.show_table(table.title, list(table.columns), rows, table.note)
        for line in lines:
            terminal.say(line)
        terminal.say(f"report: {result.report}")
        return
    if result.models:
        table = models_table(result.models)
        # Many columns: what a cell holds goes below each other.
        rows = [[row[0], *(show_cell(cell).replace(" ", "\n") for cell in row[1:])] for row in table.rows]
        columns = [column.replace(" ", "\n", 1) for column in table.columns]
        terminal.show_table(table.title, columns, rows, table.note)
    beside = [segmentation_table(result.found), change_table(result.found)]  # the one table has no place for these
    for table in [t for t in beside if t.rows] if result.models else all_tables(result.found):
        rows = [[show_cell(c) for c in row] for row in table.rows]
        terminal.show_table(table.title, list(table.columns), rows, table.note)
    for line in [*remarks(result.models), *result.found.absent]:
        terminal.say(line)
    terminal.say(f"report: {result.report}")


def _left_out(result: DetectorReport) -> list[str]:
    lines = [f"annotations: {result.faults}"]
    return [*lines, f"unreadable images: {result.unreadable}"] if result.result.unreadable else lines
