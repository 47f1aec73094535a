"""Windows of the ledger: no row is lost or counted twice, whatever ends a process, and what is changed later shows."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from written_ledger import BATCH, ORDERED, Killed, Order, counted, prove, roll, write

from radioplat.data.ledger import chain, loose_files, proof
from radioplat.data.ledger.ledger import Ledger
from radioplat.errors import DataError

pytestmark = pytest.mark.usefixtures("small_windows")


def judged(folder, steps: int) -> dict:
    command = [sys.executable, "-m", "benchmarks.judges.ledger", str(folder), "--samples", str(steps * BATCH)]
    root = Path(__file__).parents[3]
    return json.loads(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout)


STARTS = st.lists(
    st.tuples(
        st.integers(0, 5),  # checkpoints that it goes back, of all that there ever were
        st.integers(1, 9),  # steps that it runs
        st.integers(1, 3),  # workers
        st.integers(0, 2),  # steps after its last checkpoint
        st.booleans(),  # whether its checkpoints are noticed
        st.one_of(st.none(), st.integers(0, 9)),  # the file operation at which the process is killed
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=STARTS)
@example(  # a kill while rows of abandoned steps were to move, which then have no reason to
    starts=[
        (0, 2, 1, 1, False, None),
        (1, 1, 1, 0, True, None),
        (1, 1, 1, 0, False, None),
        (0, 1, 1, 0, False, None),
        (0, 2, 1, 1, True, 3),
    ]
)
def test_whatever_happens_the_counts_are_those_of_the_rows(tmp_path_factory, kill_at, starts):
    """Each start goes on from any checkpoint that there ever was, also from one that was left out before."""
    folder, rows = tmp_path_factory.mktemp("ledger"), 0
    checkpoints: list[tuple[int, tuple]] = [(0, ())]  # steps, and the attempts that led there with their first steps
    for attempt, (back, ahead, world, lost, rolls, end) in enumerate(starts, start=1):
        first, led = checkpoints[-1 - min(back, len(checkpoints) - 1)]
        led = (*(start for start in led if start[1] < first), (attempt, first))
        newest = None
        for step in range(first, first + ahead + lost, 2):
            stop = min(step + 2, first + ahead + lost)
            write(folder, attempt, range(step, stop), world)
            rows += (stop - step) * BATCH
            if stop <= first + ahead:
                newest = stop
                checkpoints.append((newest, led))
            if rolls and newest is not None:
                kill_at(end)
                with contextlib.suppress(Killed):
                    roll(folder, newest, attempt, starts=led)
                kill_at(None)
        if newest is None:
            return  # the last start saved nothing: no checkpoint is its own
    wanted = (newest * BATCH, newest * BATCH, 0, 0, 0, rows - newest * BATCH, 0)
    for full in (False, True):
        assert counted(folder, newest, attempt, starts=led, full=full) == wanted
    lines = folder / chain.NAME
    if lines.exists():  # without the lines the files tell the same
        lines.rename(folder / "lost")
        assert counted(folder, newest, attempt, starts=led) == wanted
        (folder / "lost").rename(lines)
    roll(folder, newest, attempt, starts=led)
    assert counted(folder, newest, attempt, starts=led) == wanted
    assert prove(folder, newest, attempt, starts=led, full=True).holds
    assert roll(folder, newest, attempt, starts=led) == []  # nothing is left
    assert not (folder / loose_files.MOVE).exists()


def test_another_program_agrees_and_few_files_are_left(tmp_path):
    write(tmp_path, 1, range(12), world=3)
    before = len(list(tmp_path.iterdir()))
    roll(tmp_path, 8, 1)
    write(tmp_path, 2, range(8, 20), world=3)  # the first start had gone on to step 12
    roll(tmp_path, 16, 2)
    result = judged(tmp_path, 20)
    wrong = {name: result[name] for name in ("missing", "repeated", "links_wrong", "blocks_wrong")}
    assert not any(wrong.values()), result
    assert result["windows"] == 4 and result["files"] < before
    assert counted(tmp_path, 20) == (120, 120, 0, 0, 0, 24, 0)


@pytest.mark.parametrize("full", [False, True])
def test_steps_in_which_something_is_wrong_stay_as_they_are(tmp_path, full):
    """They have no window: a file that comes late completes them."""
    write(tmp_path, 1, range(6), 2, lambda step, rows: np.delete(rows, 3, 0) if step == 2 else rows)
    roll(tmp_path, 6, 1)
    result = prove(tmp_path, 6, full=full)
    assert not result.holds and (result.missing, result.repeated, result.misplaced, result.consumed) == (1, 0, 0, 35)
    assert result.examples == [f"sample {(15 * 7 + 3) % 11} at position 15, step 2: not seen"]
    assert [window.steps for window in chain.Chain(tmp_path).windows] == [(4, 6)]
    late = Ledger(tmp_path, 1, 1)
    late.consumed(2, 1, np.array([15]), np.array([(15 * 7 + 3) % 11]), np.zeros(1))
    late.flush()
    assert prove(tmp_path, 6, full=full).holds
    write(tmp_path, 1, range(6, 8), 2)
    roll(tmp_path, 8, 1)
    assert counted(tmp_path, 8) == (48, 48, 0, 0, 0, 0, 0)
    assert not list(tmp_path.glob("consumed-a*-r*"))


def test_a_sample_that_is_written_again_later_is_repeated(tmp_path):
    write(tmp_path, 1, range(4))
    roll(tmp_path, 4, 1)
    again = Ledger(tmp_path, 0, 1)
    again.consumed(2, 0, np.array([15]), np.array([(15 * 7 + 3) % 11]), np.zeros(1))
    again.flush()
    for _ in range(2):
        assert counted(tmp_path, 4, 1) == (24, 25, 0, 1, 0, 0, 0)
        roll(tmp_path, 4, 1)


def test_steps_of_another_order_stay_apart(tmp_path):
    """A start with another order compares its own steps alone, also if it begins inside a window of the old one."""
    write(tmp_path, 1, range(8))
    roll(tmp_path, 8, 1)  # windows of steps 0 to 4 and 4 to 8
    write(tmp_path, 2, range(6, 12), change=lambda step, rows: rows + [0, 1])

    class Shifted(Order):
        def slice(self, start, stop):
            refs = super().slice(start, stop)
            refs.sample_id = refs.sample_id + 1
            return refs

    shifted = replace(ORDERED, order=Shifted(), name="shifted", first_step=6)
    wanted = (36, 36, 0, 0, 0, 12, 36)
    assert counted(tmp_path, 12, 2, ordered=shifted) == wanted
    roll(tmp_path, 12, 2, ordered=shifted)
    assert counted(tmp_path, 12, 2, ordered=shifted) == wanted
    assert counted(tmp_path, 12, 2, ordered=shifted, full=True) == wanted


def test_one_row_in_a_hundred_is_read_again(tmp_path, monkeypatch):
    write(tmp_path, 1, range(400), flush=100)
    roll(tmp_path, 400, 1)
    monkeypatch.setattr(proof, "LEAST_ROWS", 10)
    result = prove(tmp_path, 400)
    assert result.holds and 2400 // 100 <= result.checked < 2400 // 100 + 10
    assert prove(tmp_path, 400, full=True).checked == 2400
    monkeypatch.setattr(proof, "LEAST_ROWS", 500)  # row groups of less than 10 rows do not make it less
    assert 500 <= prove(tmp_path, 400).checked < 510


def test_rows_that_a_lost_worker_still_writes_are_replayed(tmp_path):
    """Of an attempt that was thought to have ended; the steps were moved into windows before."""
    write(tmp_path, 1, range(4))
    write(tmp_path, 2, range(4, 8))
    roll(tmp_path, 8, 2)
    write(tmp_path, 1, range(4, 6))
    assert counted(tmp_path, 8, 2) == (48, 48, 0, 0, 0, 12, 0)
    write(tmp_path, 2, range(8, 10))
    roll(tmp_path, 10, 2)
    assert counted(tmp_path, 10, 2) == (60, 60, 0, 0, 0, 12, 0)


def test_the_first_rows_of_an_attempt_are_not_taken_from_the_one_before(tmp_path):
    """Which had gone on beyond its checkpoint; where each attempt began is known."""
    write(tmp_path, 1, range(8))
    write(tmp_path, 2, range(4, 10))
    led = ((1, 0), (2, 4))
    assert counted(tmp_path, 10, 2, starts=led) == (60, 60, 0, 0, 0, 24, 0)
    next(p for p in sorted(tmp_path.glob("consumed-a0002*")) if pq.read_table(p)["step"][0].as_py() == 4).unlink()
    assert counted(tmp_path, 10, 2, starts=led) == (60, 48, 12, 0, 0, 24, 0)
    roll(tmp_path, 10, 2, starts=led)
    assert counted(tmp_path, 10, 2, starts=led) == (60, 48, 12, 0, 0, 24, 0)


def test_a_checkpoint_that_was_left_out_once_has_its_rows(tmp_path):
    """An attempt goes back before it, the next one goes on from it: rows of abandoned steps count again."""
    write(tmp_path, 1, range(8))
    roll(tmp_path, 8, 1, starts=((1, 0),))
    write(tmp_path, 2, range(4, 6))
    roll(tmp_path, 6, 2, starts=((1, 0), (2, 4)))
    assert counted(tmp_path, 6, 2, starts=((1, 0), (2, 4))) == (36, 36, 0, 0, 0, 24, 0)
    write(tmp_path, 3, range(8, 10))
    led = ((1, 0), (3, 8))
    for _ in range(2):
        assert counted(tmp_path, 10, 3, starts=led) == (60, 60, 0, 0, 0, 12, 0)
        roll(tmp_path, 10, 3, starts=led)


def test_a_proof_beside_a_run_that_goes_on(tmp_path):
    """Files move while it reads."""
    write(tmp_path, 1, range(4), world=2)
    roll(tmp_path, 4, 1)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            wrong.extend([] if prove(tmp_path, 4, 1).holds else ["does not hold"])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in range(4, 60, 2):
            write(tmp_path, 1, range(step, step + 2), world=2)
            roll(tmp_path, step + 2, 1)
    finally:
        stop.set()
        reader.join()
    assert not wrong


def test_a_process_that_has_been_taken_over_moves_nothing(tmp_path):
    write(tmp_path, 1, range(8), world=2)
    before = {path.name for path in tmp_path.glob("consumed-a*-r*")}

    def check() -> None:
        raise DataError("another one is at work")

    with pytest.raises(DataError, match="another one"):
        roll(tmp_path, 8, 1, check=check)
    assert before == {path.name for path in tmp_path.glob("consumed-a*-r*")} and not chain.Chain(tmp_path).windows
    assert counted(tmp_path, 8) == (48, 48, 0, 0, 0, 0, 0)


def test_rejected_samples_are_merged_and_counted_once(tmp_path):
    write(tmp_path, 1, range(4))
    for rank in range(3):
        book = Ledger(tmp_path, rank, 1)
        book.rejected(rank, rank, np.array([6 * rank]), np.array([1]), ["corrupt_image: cut"])
        book.flush()
    roll(tmp_path, 4, 1)
    assert len(list(tmp_path.glob("rejected-a*"))) == 1
    assert prove(tmp_path, 4).unlearned == {"corrupt_image": 3}
