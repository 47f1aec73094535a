"""The versions of all records in the task folder of a run: its own, those of the ledger and of the run's index."""

from __future__ import annotations

from pathlib import Path

from radioplat.data.index.shard_index import check_index
from radioplat.data.ledger.chain import Chain
from radioplat.tracking.record_versions import RUN, check_newer, check_readable, prepare_folder

LEDGER, DATA = "ledger", "data"


def check_run(folder: Path) -> None:
    """Check that no record of the run in ``folder`` is of a newer version; checkpoints are checked where they are read.

    Raises:
        NewerRecord: one is; it names the version that wrote it.
        RadioplatError: a ``versions.json`` is damaged.
    """
    for part in (folder, folder / LEDGER):
        check_newer(part)
    Chain(folder / LEDGER)
    check_index(folder / DATA)


def check_readable_run(folder: Path) -> None:
    """Check that a command that only reads can read all records of the run in ``folder``.

    Raises:
        NewerRecord: as :func:`check_run`.
        RadioplatError: a record is of an older schema; the message names the command that brings it up.
    """
    check_run(folder)
    for part in (folder, folder / LEDGER):
        check_readable(part)


def prepare_run(folder: Path) -> list[str]:
    """Bring the older records of the run in ``folder`` up; the caller holds its lease and has written nothing yet.

    Returns:
        A line for the user for each record that was brought up.

    Raises:
        NewerRecord: as :func:`check_run`; nothing is changed.
        RadioplatError: there is no way from an older schema to this version's.
    """
    check_run(folder)
    lines = []
    for part, kinds in ((folder, RUN), (folder / LEDGER, ("ledger",))):
        lines += [f"{part}: {kind} brought up from schema {old}" for kind, old in prepare_folder(part, kinds).items()]
    return lines
