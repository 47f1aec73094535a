"""The copy of the ledger beside those of checkpoints: what a killed start, an older folder or another writer does."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from written_ledger import BATCH, ORDERED, write

from radioplat.data.ledger.ledger import Ledger
from radioplat.data.ledger.lineage import Reached
from radioplat.data.ledger.proof import prove
from radioplat.data.ledger.roll_up import roll_up
from radioplat.errors import TrainingError
from radioplat.training.checkpoints import run_ledger
from radioplat.training.checkpoints.mirror import Mirror
from radioplat.training.checkpoints.run_ledger import RunLedger
from radioplat.training.checkpoints.run_state import RunState


def ledger_of(folder: Path) -> RunLedger:
    """Of a run in ``folder``; copies need no more of the run."""
    (folder / "ledger").mkdir(parents=True, exist_ok=True)
    return RunLedger(SimpleNamespace(folder=folder))


def at(*starts: int, steps: int) -> RunState:
    """The state of a checkpoint of attempts 1, 2, ... that began at these steps."""
    return RunState(steps, attempt=len(starts), starts=[list(start) for start in enumerate(starts, start=1)])


def run_on(ledger: RunLedger, mirror: Mirror, attempt: int, steps: range) -> None:
    """Steps, a checkpoint, and the copy that comes with it."""
    write(ledger.folder, attempt, steps, world=2)
    roll_up(ledger.folder, ORDERED, Reached(steps.stop, attempt))
    ledger.copy(mirror)


def holds(ledger: RunLedger, steps: int) -> bool:
    result = prove(ledger.folder, ORDERED, Reached(steps), full=True)
    return result.holds and not result.unreadable and result.consumed == steps * BATCH


@pytest.fixture
def mirror(tmp_path) -> Mirror:
    return Mirror(str(tmp_path / "mirror"))


def test_a_lost_ledger_comes_back(tmp_path, mirror):
    first = ledger_of(tmp_path / "run")
    run_on(first, mirror, 1, range(4))
    write(first.folder, 1, range(4, 6), world=2)
    first.copy(mirror)  # rows that are in no window yet
    run_on(first, mirror, 1, range(6, 8))
    shutil.rmtree(first.folder)
    again = ledger_of(tmp_path / "run")
    assert again.recover(Mirror(mirror.folder), at(0, steps=8)) and holds(again, 8)
    assert not again.recover(Mirror(mirror.folder), at(0, steps=8)), "it is there"
    run_on(again, Mirror(mirror.folder), 2, range(8, 10))
    assert holds(again, 10)


@pytest.mark.parametrize("copies", range(3))
def test_a_start_that_is_killed_while_it_copies(tmp_path, mirror, monkeypatch, copies):
    first = ledger_of(tmp_path / "run")
    run_on(first, mirror, 1, range(4))
    run_on(first, mirror, 1, range(4, 8))
    shutil.rmtree(first.folder)
    copy, done = run_ledger.copy_file, []

    def killed(source: str, target: str) -> None:
        if len(done) == copies:
            raise KeyboardInterrupt
        done.append(source)
        copy(source, target)

    monkeypatch.setattr(run_ledger, "copy_file", killed)
    with pytest.raises(KeyboardInterrupt):
        ledger_of(tmp_path / "run").recover(mirror, at(0, steps=8))
    monkeypatch.setattr(run_ledger, "copy_file", copy)
    again = ledger_of(tmp_path / "run")
    assert again.recover(mirror, at(0, steps=8)) and holds(again, 8)


def test_a_folder_that_is_older_than_the_copy(tmp_path, mirror):
    """A start on another machine went on; then the first machine starts again."""
    first = ledger_of(tmp_path / "first")
    run_on(first, mirror, 1, range(4))
    write(first.folder, 1, range(4, 6), world=2)  # after its last checkpoint
    second, there = ledger_of(tmp_path / "second"), Mirror(mirror.folder)
    assert second.recover(there, at(0, steps=4))
    run_on(second, there, 2, range(4, 8))
    again, here = ledger_of(tmp_path / "first"), Mirror(mirror.folder)
    assert again.recover(here, at(0, 4, steps=8)) and holds(again, 8)
    assert list((tmp_path / "first" / "ledger_replaced_1").glob("consumed-a0001-r*")), "what it had is kept"
    run_on(again, here, 3, range(8, 12))
    assert holds(again, 12)
    shutil.rmtree(again.folder)
    third = ledger_of(tmp_path / "first")
    assert third.recover(Mirror(mirror.folder), at(0, 4, 8, steps=12)) and holds(third, 12)


def test_a_writer_that_was_taken_over_changes_nothing_there(tmp_path, mirror):
    first = ledger_of(tmp_path / "first")
    run_on(first, mirror, 1, range(4))
    second, there = ledger_of(tmp_path / "second"), Mirror(mirror.folder)
    there.claim()
    assert second.recover(there, at(0, steps=4))
    run_on(second, there, 2, range(4, 8))
    with pytest.raises(TrainingError, match="another writer"):
        run_on(first, mirror, 1, range(4, 6))
    third = ledger_of(tmp_path / "third")
    assert third.recover(Mirror(mirror.folder), at(0, 4, steps=8)) and holds(third, 8)


def test_a_copy_that_was_cut_off_is_made_again(tmp_path, mirror):
    ledger = ledger_of(tmp_path / "run")
    run_on(ledger, mirror, 1, range(4))
    file = next(Path(mirror.folder, "ledger").glob("consumed-a*"))
    file.write_bytes(file.read_bytes()[:100])
    ledger.copy(mirror)
    shutil.rmtree(ledger.folder)
    again = ledger_of(tmp_path / "run")
    assert again.recover(Mirror(mirror.folder), at(0, steps=4)) and holds(again, 4)


def test_two_machines_that_both_went_on(tmp_path, mirror):
    """The first, cut off, commits a checkpoint of its own; the second goes on from the copy; the first starts again."""
    first = ledger_of(tmp_path / "first")
    run_on(first, mirror, 1, range(4))
    second, there = ledger_of(tmp_path / "second"), Mirror(mirror.folder)
    assert second.recover(there, at(0, steps=4))
    write(first.folder, 1, range(4, 6), world=2)
    roll_up(first.folder, ORDERED, Reached(6, 1))
    run_on(second, there, 2, range(4, 8))
    again = ledger_of(tmp_path / "first")
    assert again.recover(Mirror(mirror.folder), at(0, 4, steps=8)) and holds(again, 8)


@pytest.mark.parametrize("lost", ["windows.jsonl", "consumed-a0001-s000000004-*"])
def test_a_newer_ledger_that_lost_a_file_is_completed_or_kept(tmp_path, mirror, lost):
    """Without its lines the files here still tell more than the older copy; a window that is lost comes from there."""
    ledger = ledger_of(tmp_path / "run")
    run_on(ledger, mirror, 1, range(4))
    run_on(ledger, mirror, 1, range(4, 8))
    if lost == "windows.jsonl":
        write(ledger.folder, 1, range(8, 10), world=2)
        roll_up(ledger.folder, ORDERED, Reached(10, 1))
    (file,) = ledger.folder.glob(lost)
    file.unlink()
    steps = 10 if lost == "windows.jsonl" else 8
    assert ledger.recover(Mirror(mirror.folder), at(0, steps=steps)) is (lost != "windows.jsonl")
    result = prove(ledger.folder, ORDERED, Reached(steps, 1), full=True)
    assert result.holds and result.consumed == steps * BATCH


def test_rejected_samples_come_back_and_files_of_a_dead_worker_do_not(tmp_path, mirror):
    ledger = ledger_of(tmp_path / "run")
    write(ledger.folder, 1, range(6), world=2)
    book = Ledger(ledger.folder, 0, 1)
    book.rejected(1, 0, np.array([6]), np.array([1]), ["corrupt_image: cut"])
    book.flush()
    ledger.copy(mirror)  # a checkpoint whose rows were not moved
    later = ledger_of(tmp_path / "run")  # another process does not know what it copied
    write(later.folder, 2, range(4, 8), world=2)
    roll_up(later.folder, ORDERED, Reached(8, 2, ((1, 0), (2, 4))))
    later.copy(mirror)
    assert list(Path(mirror.folder, "ledger").glob("consumed-a0001-r*"))
    shutil.rmtree(later.folder)
    again = ledger_of(tmp_path / "run")
    assert again.recover(Mirror(mirror.folder), at(0, 4, steps=8))
    for _ in range(2):
        result = prove(again.folder, ORDERED, Reached(8, 2, ((1, 0), (2, 4))))
        assert (result.holds, result.replayed, result.unlearned) == (True, 12, {"corrupt_image": 1})
        roll_up(again.folder, ORDERED, Reached(8, 2, ((1, 0), (2, 4))))
