"""Tables of a chain, for the terminal and for ``report.html``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from radioplat.common import terminal
from radioplat.exporting.engines.engine_record import read_record, state_of
from radioplat.tasks.compress.chain_record import Entry
from radioplat.tasks.evaluate.side_by_side import ModelRow, models_tables
from radioplat.tracking.table import Table


def tables_of(entries: Sequence[Entry], metric: str) -> list[Table]:
    """Return a table with a row for each stage, and the tables of each evaluation."""
    note = (
        f"{metric} is of dataset.val_dataset; kept is its share of the starting student's; size is that of the "
        "checkpoint or file that the stage wrote; parameters and multiply-accumulates are those of the backbone."
    )
    columns = ["stage", "size", "parameters", "MACs", metric, "kept", "gate", "seconds", ""]
    tables = [Table(columns, [_row(entry, metric) for entry in entries], "Compression", note)]
    for entry in entries:
        if entry.outcome and (ready := entry.outcome.facts.get("tables")):  # of detectors
            evaluated = [Table(**table) for table in ready]
        elif entry.outcome and (rows := entry.outcome.facts.get("models")):
            evaluated = models_tables([ModelRow.from_json(row) for row in rows])
        else:
            continue
        tables += [dataclasses.replace(table, title=f"{entry.name}: {table.title}") for table in evaluated]
    return tables


def _row(entry: Entry, metric: str) -> list[object]:
    done, verdict = entry.outcome, {True: "passed", False: "failed", None: None}[entry.passed]
    kept = None if entry.kept is None else f"{entry.kept:.1%}"
    if done is None:
        return [entry.name, None, None, None, None, kept, verdict, None, "not finished"]
    seconds = entry.seconds + entry.measured_s
    engine = [state_of(read_record(done.path))] if done.path.endswith(".engine") else []
    value = entry.metrics.get(metric)
    size = terminal.size(done.bytes)
    return [
        entry.name,
        size,
        done.params,
        done.macs,
        value,
        kept,
        verdict,
        seconds,
        ", ".join([*engine, *entry.milder]),
    ]
