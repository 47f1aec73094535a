"""Compare the ledger with the order while a run goes on: a thread of the driver that follows the checkpoints."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

from radioplat.data.ledger.chain import NAME as CHAIN
from radioplat.data.ledger.roll_up import Ordered, roll_up
from radioplat.data.order.order import SampleOrder
from radioplat.data.storage.files import absolute, copy_file, list_files, remove_file
from radioplat.design.run import Run
from radioplat.errors import RadioplatError
from radioplat.tracking.record_versions import NAME as VERSIONS
from radioplat.tracking.record_versions import Versions, prepare_folder, refuse_newer
from radioplat.tracking.results import TaskFolder
from radioplat.training.checkpoints.mirror import FIELD, read_whole
from radioplat.training.checkpoints.resume import mirror_of
from radioplat.training.checkpoints.run_state import STATE

EVERY_S = 5.0
FOLDER = "ledger"


class LedgerWindows:
    """While the block runs, move rows up to the newest checkpoint into windows of the ledger.

    Args:
        run: the caller holds the lease of its folder. With ``train.checkpoint_dir`` the ledger is copied there, too.
        order: of the run.
        say: called with a line for the user when the ledger cannot be read, written or copied.
    """

    def __init__(self, run: Run, order: SampleOrder, say: Callable[[str], None]) -> None:
        self._run, self._order, self._say = run, order, say
        self._ledger, self._mirror = run.folder / FOLDER, mirror_of(run.spec, run.task)
        self._last: Path | None = None  # the checkpoint that was looked at last
        self._reported = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="ledger", daemon=True)

    def __enter__(self) -> LedgerWindows:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        """Move the rows up to the newest checkpoint; what fails is said once and tried again at the next call."""
        try:
            newest = TaskFolder(self._run.folder.parent, self._run.folder.name).latest()
            if newest is None or newest == self._last:
                return
            state = json.loads(
                (newest / STATE).read_bytes()
            )  # whole: the link is set after the checkpoint is committed
            if state["order_hash"] != self._run.order_hash:  # this start has saved nothing yet
                return
            batch = self._run.spec.global_batch_size
            ordered = Ordered(self._order, state["order_hash"], batch, state["order_from"])
            roll_up(self._ledger, ordered, state["global_step"], state["attempt"])
            if self._mirror is not None:
                _copy(self._ledger, self._mirror.folder)
            self._last, self._reported = newest, ""
        except (OSError, ValueError, KeyError, RadioplatError) as error:
            message = f"{self._ledger} was not compared with the order yet: {error}"
            if message != self._reported:
                self._reported = message
                self._say(message)

    def _follow(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.look()


def recover_ledger(run: Run) -> bool:
    """Copy the ledger from ``train.checkpoint_dir`` if the run's folder has lost its own; return True if it was copied.

    Raises:
        NewerRecord: a newer version wrote it; nothing is copied.
        RadioplatError: it cannot be read or written.
    """
    mirror, ledger = mirror_of(run.spec, run.task), run.folder / FOLDER
    if mirror is None or any(ledger.glob("consumed-a*.parquet")) or (ledger / CHAIN).exists():
        return False
    try:
        return _copy_back(mirror.folder, ledger)
    except OSError as error:
        raise RadioplatError(f"the ledger cannot be copied from there: {error}", where=FIELD) from None


def _copy(ledger: Path, mirror: str) -> None:
    """Make ``<mirror>/ledger`` a copy of the ledger's files.

    ``versions.json`` comes first, and ``windows.jsonl``, which names the others, last.
    """
    there = f"{absolute(mirror)}/{FOLDER}"
    before, here = set(_names(there)), {path.name for path in ledger.glob("*.parquet")}
    if (ledger / VERSIONS).exists():
        copy_file(str(ledger / VERSIONS), f"{there}/{VERSIONS}")
    for name in sorted(here - before):
        with contextlib.suppress(FileNotFoundError):  # a worker's file that was moved into a window meanwhile
            copy_file(str(ledger / name), f"{there}/{name}")
    if (ledger / CHAIN).exists():
        copy_file(str(ledger / CHAIN), f"{there}/{CHAIN}")
    for name in sorted(before - here - {CHAIN, VERSIONS}):
        remove_file(f"{there}/{name}")


def _copy_back(mirror: str, ledger: Path) -> bool:
    """Copy the files of ``<mirror>/ledger``, in the order of :func:`_copy`; return False if there are none."""
    there = f"{absolute(mirror)}/{FOLDER}"
    names = _names(there)
    if VERSIONS in names:
        path = f"{there}/{VERSIONS}"
        refuse_newer(Versions.from_json(read_whole(path), path), path)
    if names:
        (ledger / VERSIONS).unlink(missing_ok=True)  # of this version; what is copied may be older
    for name in sorted(names, key=lambda name: (name == CHAIN, name != VERSIONS)):
        copy_file(f"{there}/{name}", str(ledger / name))
    if names:
        prepare_folder(ledger, ("ledger",))
    return bool(names)


def _names(folder: str) -> list[str]:
    try:
        return [name for name, _ in list_files(folder, lambda _: True)]
    except FileNotFoundError:
        return []
