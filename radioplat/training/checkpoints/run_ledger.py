"""The ledger of a run, beside its checkpoints: compared with the order at each of them, and copied with them."""

from __future__ import annotations

import contextlib
import json
import shutil
from functools import cached_property
from pathlib import Path

from radioplat.data.ledger.chain import NAME as CHAIN
from radioplat.data.ledger.loose_files import is_by_worker, missing_steps
from radioplat.data.ledger.roll_up import Ordered, clear_copies, roll_up
from radioplat.data.loading.run_data import RunData
from radioplat.data.order.order import SampleOrder
from radioplat.data.storage.files import copy_file, list_files, remove_file
from radioplat.design.run import Run
from radioplat.errors import RadioplatError, TrainingError
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.lease import check_lease
from radioplat.tracking.record_versions import NAME as VERSIONS
from radioplat.tracking.record_versions import Versions, prepare_folder, refuse_newer
from radioplat.training.checkpoints.mirror import FIELD, Mirror, read_whole
from radioplat.training.checkpoints.run_state import STATE, RunState, current_state

FOLDER = "ledger"
_MADE_ANEW = {VERSIONS, "rejects.parquet"}  # by each start


class RunLedger:
    """The ledger in the folder of ``run``; one process at a time may change it: rank 0, or the driver without workers.

    Attributes:
        folder: of its files.
    """

    def __init__(self, run: Run) -> None:
        self._run, self.folder = run, run.folder / FOLDER
        self._copied: set[str] = set()  # names in the mirror

    @cached_property
    def _order(self) -> SampleOrder:
        return RunData.load(self._run.data_dir, self._run.spec.dataset.train_dataset).order

    def roll_up(self, checkpoint: Path, alone: bool = False) -> None:
        """Compare the rows up to a committed checkpoint of this run with the order, and move them into windows.

        Args:
            alone: no worker runs, so that a later start of workers may have ended.

        Raises:
            RadioplatError: another run has taken the folder over, or a newer version wrote the ledger.
            OSError: a file cannot be read or written; a later call goes on where this one ended.
        """
        if not any(self.folder.glob("consumed-a*.parquet")):
            return
        state = RunState(**current_state(json.loads((checkpoint / STATE).read_bytes())))
        if state.order_hash != self._run.order_hash:
            return
        attempts = Attempts(self._run.folder)

        def check() -> None:
            """Check that the ledger is still this start's."""
            if (taken := check_lease(self._run.folder, self._run.lease)) is not None:
                raise taken
            if not alone and attempts.last > state.attempt:
                raise TrainingError("a later start of the workers has the ledger now", where=str(self.folder))

        check()
        ordered = Ordered(self._order, state.order_hash, self._run.spec.global_batch_size, state.order_from)
        roll_up(self.folder, ordered, state.reached, check)

    def copy(self, mirror: Mirror) -> None:
        """Copy the files that the mirror lacks to ``ledger`` there.

        ``versions.json`` comes first, and ``windows.jsonl``, which names other files, last. Files that were moved into
        windows here since the last call are removed there.

        Raises:
            OSError: a file cannot be copied or removed.
            TrainingError: the mirror has another writer.
        """
        there = f"{mirror.folder}/{FOLDER}"
        before = _sizes(there)
        here = {path.name: _size(path) for path in self.folder.glob("*.parquet")}
        mirror.check_owner()
        if (self.folder / VERSIONS).exists():
            copy_file(str(self.folder / VERSIONS), f"{there}/{VERSIONS}")
        for name in sorted(name for name, size in here.items() if size != before.get(name)):
            with contextlib.suppress(FileNotFoundError):
                copy_file(str(self.folder / name), f"{there}/{name}")
        if (self.folder / CHAIN).exists():
            mirror.check_owner()
            copy_file(str(self.folder / CHAIN), f"{there}/{CHAIN}")
        for name in sorted(name for name in self._copied - set(here) if is_by_worker(name)):
            remove_file(f"{there}/{name}")
        self._copied = set(here)

    def recover(self, mirror: Mirror, state: RunState) -> bool:
        """Copy it from the mirror if that one has more of the steps that led to a checkpoint; return True if copied.

        What was here is kept beside it, as ``ledger_replaced_N``.

        Args:
            state: of the checkpoint that the run goes on from.

        Raises:
            NewerRecord: a newer version wrote the copy; nothing is copied.
            RadioplatError: it cannot be read or written.
        """
        there, aside = f"{mirror.folder}/{FOLDER}", self.folder.with_name(f".{FOLDER}.partial")
        try:
            lacking = missing_steps(self.folder, state.order_from, state.reached)
            names = _sizes(there) if lacking else {}
            if not names:
                return False
            if VERSIONS in names:
                path = f"{there}/{VERSIONS}"
                refuse_newer(Versions.from_json(read_whole(path), path), path)
            shutil.rmtree(aside, ignore_errors=True)
            for name in names:
                copy_file(f"{there}/{name}", str(aside / name))
            clear_copies(aside)
            if missing_steps(aside, state.order_from, state.reached) >= lacking:
                return False
            if self.folder.exists() and not {path.name for path in self.folder.iterdir()} <= _MADE_ANEW:
                self.folder.rename(_unused(self.folder))
            shutil.rmtree(self.folder, ignore_errors=True)
            aside.rename(self.folder)
            prepare_folder(self.folder, ("ledger",))
        except OSError as error:
            raise RadioplatError(f"the ledger cannot be copied from there: {error}", where=FIELD) from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return True


def _sizes(folder: str) -> dict[str, int]:
    try:
        return {name: state.size for name, state in list_files(folder, lambda _: True)}
    except FileNotFoundError:
        return {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # moved into a window meanwhile
        return -1


def _unused(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}_replaced_{number}")).exists():
        number += 1
    return aside
