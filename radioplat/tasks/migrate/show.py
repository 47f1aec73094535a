"""Terminal output of ``radioplat migrate``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from radioplat.common import terminal
from radioplat.tasks.migrate.migrate_run import CURRENT, RecordState
from radioplat.tasks.migrate.spec_fields import MigratedSpec
from radioplat.tasks.migrate.written_spec import WrittenSpec
from radioplat.tracking.table import show_cell


def show_run(states: Sequence[RecordState]) -> None:
    """Print the records of each folder, and whether anything was done."""
    for folder, rows in groupby(states, key=lambda state: state.folder):
        cells = [[state.record, show_cell(state.schema), state.outcome] for state in rows]
        terminal.show_table(str(folder), ["record", "schema", ""], cells)
    older = sum(state.outcome != CURRENT for state in states)
    terminal.say(f"{older} of {len(states)} records were older" if older else "nothing was to be done")


def show_spec(source: Path, migrated: MigratedSpec) -> None:
    """Print which fields were left out, and the name of the new file."""
    if migrated.path is None:
        terminal.say(f"{source}: nothing is to be done, this version reads all its fields")
        return
    for path, reason in migrated.fields.items():
        terminal.say(f"{path} is left out: {reason}")
    terminal.say(f"{migrated.path}: written" + ("" if migrated.comments else "; its comments are lost"))


def show_written(migrated: WrittenSpec, out: str | None) -> None:
    """Write a spec to ``out``, or print it; the notes go to stderr, so that they are in no file."""
    if out:
        migrated.write(Path(out))
        terminal.note(f"{out}: written; see what it does with radioplat plan -e {out}")
    else:
        sys.stdout.write(migrated.text)
    for name, reason in migrated.notes.items():
        terminal.note(f"{name}: {reason}")
