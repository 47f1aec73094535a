"""``radioplat migrate run FOLDER``: bring the records of a run up to this version."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from radioplat import __version__
from radioplat.common.terminal import note
from radioplat.errors import DataError, Problem, problems_of
from radioplat.tasks.migrate.numbered_files import NUMBERED
from radioplat.tasks.migrate.spec_fields import drop_fields, gone_fields
from radioplat.tracking.lease import Lease
from radioplat.tracking.record_versions import (
    KINDS,
    NewerRecord,
    bring_up,
    check_newer,
    is_unfinished,
    known_records,
    newer_record,
    older_records,
    read_versions,
)
from radioplat.tracking.results import EXPERIMENT

CURRENT, UP = "as this version writes it", "brought up to schema {}"
_PARTS = ("ledger", "data")  # folders that belong to the run in the folder above


@dataclass(frozen=True)
class RecordState:
    """One record of a run.

    Attributes:
        folder: of ``versions.json``, or of the file with the schema.
        record: its kind, or the file's name.
        schema: that it had; None for a spec.
        outcome: what was done.
    """

    folder: Path
    record: str
    schema: int | None
    outcome: str


def migrate_run(path: Path, say: Callable[[str], None] = note) -> list[RecordState]:
    """Bring all older records in and below ``path`` up; change nothing if there is none.

    Args:
        path: a results folder, or a folder in it.
        say: called with a line for the user before a wait for a lease.

    Returns:
        Every record, by folder.

    Raises:
        DataError: there are no records.
        NewerRecord: with a problem for each record of a newer version, and for each field of a run's
            ``experiment.yaml`` that this version does not know; nothing is changed.
        LeaseTaken: a run that has older records is being written.
        RadioplatError: a ``versions.json`` is damaged, or there is no way from an older schema to this version's.
    """
    folders = list(_folders(path))
    problems = [problem for folder in folders for problem in _newer(folder)]
    if problems:
        raise NewerRecord(*problems)
    states = []
    for folder in folders:
        upgraded: dict[str, int] = {}
        spec = folder / EXPERIMENT
        fields = gone_fields(spec) if spec.is_file() else {}
        if fields or older_records(folder) or is_unfinished(folder):
            with Lease(folder.parent if folder.name in _PARTS else folder, say):
                upgraded = bring_up(folder)
                if fields:
                    drop_fields(spec, fields)
                    states.append(RecordState(folder, EXPERIMENT, None, f"left out: {', '.join(fields)}"))
        for kind, schema in known_records(folder).items():
            outcome = UP.format(KINDS[kind].schema) if kind in upgraded else CURRENT
            states.append(RecordState(folder, kind, upgraded.get(kind, schema), outcome))
        for name, numbered in NUMBERED.items():
            number = numbered.read(folder / name)
            if number is not None:
                outcome = CURRENT if number == numbered.schema else numbered.older
                states.append(RecordState(folder, name, number, outcome))
    if not states:
        hint = "Give the results_dir of a run, the folder of one task in it, or a spec."
        raise DataError("no records of a run here", where=str(path), hint=hint)
    return states


def _folders(path: Path) -> Iterator[Path]:
    """Yield ``path`` and the folders below it, in order, without hidden ones: those are unfinished."""
    for folder, names, _ in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield Path(folder)


def _newer(folder: Path) -> list[Problem]:
    """Return a problem for each record in ``folder`` of a newer version, and each unknown field of its spec."""
    problems: list[Problem] = []
    try:
        check_newer(folder)
    except NewerRecord as error:
        problems += error.problems
    if (folder / EXPERIMENT).is_file():
        problems += problems_of(gone_fields, folder / EXPERIMENT)
    for name, numbered in NUMBERED.items():
        number = numbered.read(folder / name)
        if number is not None and number > numbered.schema:
            wrote = read_versions(folder).radioplat or read_versions(folder.parent).radioplat
            wrote = "" if wrote == __version__ else wrote
            problems += newer_record(str(folder / name), "its content", number, numbered.schema, wrote).problems
    return problems
