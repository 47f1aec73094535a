"""Windows of the ledger: no row is lost or counted twice, whatever ends a process, and what is changed later shows."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_ledger import BATCH, ORDERED, Order, write

from radioplat.data.ledger import chain, files, proof, roll_up
from radioplat.data.ledger.proof import prove
from radioplat.tracking.record_versions import NewerRecord, Versions

FIELDS = ("expected", "consumed", "missing", "repeated", "misplaced", "replayed", "before")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small windows, of several row groups."""
    monkeypatch.setattr(proof, "ROWS", 4 * BATCH)
    monkeypatch.setattr(roll_up, "ROWS", 4 * BATCH)
    for module in (files, proof):
        monkeypatch.setattr(module, "BLOCK", 10)


def counted(folder, steps: int, ordered=ORDERED, **how) -> tuple:
    return tuple(getattr(prove(folder, ordered, steps, **how), name) for name in FIELDS)


def judged(folder, steps: int) -> dict:
    command = [sys.executable, "-m", "benchmarks.judges.ledger", str(folder), "--samples", str(steps * BATCH)]
    root = Path(__file__).parents[3]
    return json.loads(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def kill_at(monkeypatch):
    """kill_at(n): end at the n-th file that is renamed, appended to or removed from now on; None: never."""
    left: list[int | None] = [None]

    def counting(real):
        def call(*args, **kwargs):
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "replace", counting(os.replace))
    monkeypatch.setattr(chain, "append_line", counting(chain.append_line))
    monkeypatch.setattr(Path, "unlink", counting(Path.unlink))

    def kill(number: int | None) -> None:
        left[0] = number

    return kill


STARTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # checkpoints that it goes back
        st.integers(1, 9),  # steps that it runs
        st.integers(1, 3),  # workers
        st.integers(0, 2),  # steps after its last checkpoint
        st.booleans(),  # whether its checkpoints are noticed
        st.one_of(st.none(), st.integers(0, 9)),  # the file operation at which the process is killed
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=STARTS)
def test_whatever_happens_the_counts_are_those_of_the_rows(tmp_path_factory, kill_at, starts):
    folder, checkpoints, rows = tmp_path_factory.mktemp("ledger"), [0], 0
    for attempt, (back, ahead, world, lost, noticed, end) in enumerate(starts, start=1):
        first = checkpoints[-1 - min(back, len(checkpoints) - 1)]
        checkpoints = [step for step in checkpoints if step <= first]
        for step in range(first, first + ahead + lost, 2):
            stop = min(step + 2, first + ahead + lost)
            write(folder, attempt, range(step, stop), world)
            rows += (stop - step) * BATCH
            if stop <= first + ahead:
                checkpoints.append(stop)
            if noticed and checkpoints[-1] > first:
                kill_at(end)
                try:
                    roll_up.roll_up(folder, ORDERED, checkpoints[-1], attempt)
                except Killed:
                    pass
                kill_at(None)
        led = attempt
        if checkpoints[-1] == first:
            return  # the last start saved nothing: no checkpoint is its own
    steps = checkpoints[-1]
    wanted = (steps * BATCH, steps * BATCH, 0, 0, 0, rows - steps * BATCH, 0)
    assert counted(folder, steps, attempt=led) == counted(folder, steps, attempt=led, full=True) == wanted
    roll_up.roll_up(folder, ORDERED, steps, led)
    assert counted(folder, steps, attempt=led) == counted(folder, steps, attempt=led, full=True) == wanted
    assert prove(folder, ORDERED, steps, attempt=led).holds
    assert roll_up.roll_up(folder, ORDERED, steps, led) == []  # nothing is left


def test_another_program_agrees_and_few_files_are_left(tmp_path):
    write(tmp_path, 1, range(12), world=3)
    before = len(list(tmp_path.iterdir()))
    roll_up.roll_up(tmp_path, ORDERED, 8, 1)
    write(tmp_path, 2, range(8, 20), world=3)  # the first start had gone on to step 12
    roll_up.roll_up(tmp_path, ORDERED, 16, 2)
    found = judged(tmp_path, 20)
    wrong = {name: found[name] for name in ("missing", "repeated", "links_wrong", "blocks_wrong")}
    assert not any(wrong.values()), found
    assert found["windows"] == 4 and found["files"] < before
    assert counted(tmp_path, 20) == (120, 120, 0, 0, 0, 24, 0)


@pytest.mark.parametrize("full", [False, True])
def test_what_is_wrong_when_it_is_written_stays_said(tmp_path, full):
    write(tmp_path, 1, range(6), 2, lambda step, rows: np.delete(rows, 3, 0) if step == 2 else rows)
    roll_up.roll_up(tmp_path, ORDERED, 6, 1)
    found = prove(tmp_path, ORDERED, 6, full=full)
    assert not found.holds and (found.missing, found.repeated, found.misplaced, found.consumed) == (1, 0, 0, 35)
    assert found.examples == [f"sample {(15 * 7 + 3) % 11} at position 15, step 2: not seen"] and not found.gaps


def test_a_file_that_is_changed_later_is_named_and_compared_again(tmp_path):
    write(tmp_path, 1, range(8))
    roll_up.roll_up(tmp_path, ORDERED, 8, 1)
    path = sorted(tmp_path.glob("consumed-a*-s*"))[1]
    rows = pq.read_table(path)
    ids = rows["id"].to_numpy().copy()
    ids[3] += 1
    files.write_window(rows.set_column(4, rows.schema.field("id"), [ids]), path)
    found = prove(tmp_path, ORDERED, 8)
    assert list(found.gaps) == [path] and "row group 0 differs from the order" in found.gaps[path]
    assert not found.holds and (found.missing, found.misplaced) == (1, 1)
    path.unlink()
    found = prove(tmp_path, ORDERED, 8)
    assert found.gaps == {path: "it is missing"} and found.missing == 4 * BATCH and found.replayed == 0


def test_a_changed_line_is_named_and_every_row_is_compared(tmp_path):
    write(tmp_path, 1, range(8))
    roll_up.roll_up(tmp_path, ORDERED, 8, 1)
    path = tmp_path / chain.NAME
    lines = path.read_text().splitlines()
    for text in (lines[0].replace('"missing": 0', '"missing": 1') + "\n" + lines[1], lines[1]):
        path.write_text(text + "\n")
        found = prove(tmp_path, ORDERED, 8)
        assert "was changed" in found.gaps[path] and "every row is compared" in found.gaps[path]
        assert found.checked == found.consumed


def test_a_line_that_a_killed_process_left_half_is_no_fault(tmp_path):
    write(tmp_path, 1, range(4))
    roll_up.roll_up(tmp_path, ORDERED, 4, 1)
    with open(tmp_path / chain.NAME, "a") as file:
        file.write('{"kind": "window", "att')
    write(tmp_path, 2, range(4, 8))
    roll_up.roll_up(tmp_path, ORDERED, 8, 2)
    found = prove(tmp_path, ORDERED, 8)
    assert found.holds and not found.gaps


def test_lines_of_a_newer_version_are_refused(tmp_path):
    write(tmp_path, 1, range(4))
    roll_up.roll_up(tmp_path, ORDERED, 4, 1)
    path = tmp_path / chain.NAME
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    Versions("9.9", {}).write(tmp_path)
    with pytest.raises(NewerRecord, match="line 1 has schema 2, written by radioplat 9.9; .* reads up to schema 1"):
        prove(tmp_path, ORDERED, 4)


def test_steps_of_another_order_stay_apart(tmp_path):
    """A start with another order compares its own steps alone, also if it begins inside a window of the old one."""
    write(tmp_path, 1, range(8))
    roll_up.roll_up(tmp_path, ORDERED, 8, 1)  # windows of steps 0 to 4 and 4 to 8
    write(tmp_path, 2, range(6, 12), change=lambda step, rows: rows + [0, 1])

    class Shifted(Order):
        def slice(self, start, stop):
            refs = super().slice(start, stop)
            refs.sample_id = refs.sample_id + 1
            return refs

    shifted = replace(ORDERED, order=Shifted(), name="shifted", first_step=6)
    wanted = (36, 36, 0, 0, 0, 12, 36)
    assert counted(tmp_path, 12, shifted, attempt=2) == wanted
    roll_up.roll_up(tmp_path, shifted, 12, 2)
    assert counted(tmp_path, 12, shifted, attempt=2) == counted(tmp_path, 12, shifted, attempt=2, full=True) == wanted


def test_one_block_in_a_hundred_is_read_again(tmp_path, monkeypatch):
    write(tmp_path, 1, range(400), flush=100)
    roll_up.roll_up(tmp_path, ORDERED, 400, 1)
    monkeypatch.setattr(proof, "LEAST", 10)
    found = prove(tmp_path, ORDERED, 400)
    blocks = 400 // 4 * 3  # a window of 4 steps has 24 rows
    assert found.holds and 0 < found.checked <= blocks // 100 * 10
    assert prove(tmp_path, ORDERED, 400, full=True).checked == 2400


def test_a_change_shows_also_where_something_was_wrong_before(tmp_path):
    write(tmp_path, 1, range(4), 1, lambda step, rows: np.delete(rows, 3, 0) if step == 2 else rows)
    roll_up.roll_up(tmp_path, ORDERED, 4, 1)
    (path,) = tmp_path.glob("consumed-a*-s*")
    rows = pq.read_table(path)
    files.write_window(pa.concat_tables([rows.slice(0, 3), rows.slice(4)]), path)
    found = prove(tmp_path, ORDERED, 4)
    assert found.gaps[path] == "it has 22 rows, 23 were written" and found.missing == 2
    ids = rows["id"].to_numpy().copy()
    ids[3] += 1
    files.write_window(rows.set_column(4, rows.schema.field("id"), [ids]), path)
    found = prove(tmp_path, ORDERED, 4)
    assert found.gaps[path] == "row group 0 is not what was written" and (found.missing, found.misplaced) == (2, 1)


def test_a_failing_disk_loses_nothing(tmp_path, monkeypatch):
    """An error of the storage is raised, and what it kept from being read is there at the next call."""
    write(tmp_path, 1, range(8), world=2)
    read, bad = files.pq.read_table, sorted(tmp_path.glob("*.parquet"))[3]

    def fail(path, **how):
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(path, **how)

    monkeypatch.setattr(files.pq, "read_table", fail)
    with pytest.raises(OSError, match="Input/output"):
        roll_up.roll_up(tmp_path, ORDERED, 8, 1)
    monkeypatch.setattr(files.pq, "read_table", read)
    roll_up.roll_up(tmp_path, ORDERED, 8, 1)
    found = prove(tmp_path, ORDERED, 8)
    assert found.holds and not found.gaps


def test_rows_that_a_lost_worker_still_writes_are_replayed(tmp_path):
    """Of an attempt that was thought to have ended; the steps were moved into windows before."""
    write(tmp_path, 1, range(4))
    write(tmp_path, 2, range(4, 8))
    roll_up.roll_up(tmp_path, ORDERED, 8, 2)
    write(tmp_path, 1, range(4, 6))
    assert counted(tmp_path, 8, attempt=2) == (48, 48, 0, 0, 0, 12, 0)
    write(tmp_path, 2, range(8, 10))
    roll_up.roll_up(tmp_path, ORDERED, 10, 2)
    assert counted(tmp_path, 10, attempt=2) == (60, 60, 0, 0, 0, 12, 0)
