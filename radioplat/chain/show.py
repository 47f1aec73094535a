"""The chain in the terminal and as a page."""

from __future__ import annotations

from pathlib import Path

from radioplat import terminal
from radioplat.chain.record import Entry
from radioplat.chain.run import CompressReport
from radioplat.track.report import Table, show_cell, write_report


def table_of(report: CompressReport) -> Table:
    """A row a stage."""
    note = (
        f"{report.metric} is of dataset.val_dataset, kept is its share of the starting student's; bytes are those of "
        "the checkpoint or file that the stage left, parameters and multiply-accumulates of the backbone."
    )
    columns = ["stage", "size", "parameters", "MACs", report.metric, "kept", "gate", "seconds", ""]
    return Table(columns, [_row(entry, report.metric) for entry in report.entries], "Compression", note)


def show(report: CompressReport) -> None:
    """Print the table, and write ``report.html``."""
    table = table_of(report)
    rows = [[show_cell(cell) for cell in row] for row in table.rows]
    terminal.show_table(table.title, list(table.columns), rows, table.note)
    page = write_report(Path(report.folder) / "report.html", title="Compression", tables=[table])
    terminal.say(f"student: {report.student}")
    terminal.say(f"report: {page}")


def _row(entry: Entry, metric: str) -> list[object]:
    done, verdict = entry.outcome, {True: "passed", False: "failed", None: None}[entry.passed]
    kept = None if entry.kept is None else f"{entry.kept:.1%}"
    if done is None:
        return [entry.name, None, None, None, None, kept, verdict, None, "not finished"]
    seconds = entry.seconds + entry.measured_s
    size, words = terminal.size(done.bytes), ", ".join([*done.words, *entry.milder])
    return [entry.name, size, done.params, done.macs, entry.metrics.get(metric), kept, verdict, seconds, words]
