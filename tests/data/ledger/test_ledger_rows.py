"""The rows of a checkpoint's steps are the same wherever they are, also after a kill while they were moved."""

from __future__ import annotations

import contextlib
import shutil

import pyarrow as pa
import pytest
from written_ledger import BATCH, ORDERED, Killed, roll, write

from radioplat.data.ledger.ledger_rows import LedgerRows
from radioplat.data.ledger.lineage import Reached

pytestmark = pytest.mark.usefixtures("small_windows")
STARTS = ((1, 0), (2, 7))  # the second start goes on after seven steps of the first


@pytest.fixture
def ledger(tmp_path):
    """Two starts: the first ran nine steps, of which seven count; the second ran five more."""
    write(tmp_path / "ledger", 1, range(9), world=2)
    write(tmp_path / "ledger", 2, range(7, 12))
    return tmp_path / "ledger"


def rows(folder) -> list[tuple[int, int, int, int]]:
    """Attempt, step, position and id of the steps that led to the checkpoint of twelve steps."""
    reader, reached = LedgerRows(folder), Reached(12, 2, STARTS)
    parts = reader.parts(0, reached)
    assert parts == [(1, 0, 7), (2, 7, 12)] and reader.problems(0, reached) == []
    table = pa.concat_tables([each for number, *steps in parts for each in reader.tables(number, tuple(steps))])
    columns = [table[name].to_pylist() for name in ("attempt", "step", "position", "id")]
    return sorted(zip(*columns, strict=True))


def test_rows_are_the_same_before_and_after_they_were_moved_into_windows(ledger):
    before = rows(ledger)
    order = ORDERED.order.slice(0, 12 * BATCH)
    expected = zip(order.position.tolist(), order.sample_id.tolist(), strict=True)
    assert [row[2:] for row in before] == list(expected)
    assert [row[0] for row in before] == [1] * 7 * BATCH + [2] * 5 * BATCH
    roll(ledger, 12, 2, starts=STARTS)
    assert list(ledger.glob("consumed-a*-s*.parquet")) and rows(ledger) == before
    every = pa.concat_tables(list(LedgerRows(ledger).all_tables()))
    assert len(every) == 14 * BATCH  # with the two steps that were run again


@pytest.mark.parametrize("operation", range(12))
def test_a_kill_while_they_are_moved_loses_and_repeats_none(ledger, kill_at, operation):
    before = rows(ledger)
    kill_at(operation)
    with contextlib.suppress(Killed):
        roll(ledger, 12, 2, starts=STARTS)
    kill_at(None)
    assert rows(ledger) == before
    assert len(pa.concat_tables(list(LedgerRows(ledger).all_tables()))) == 14 * BATCH


def test_what_is_missing_is_named(ledger, tmp_path):
    roll(ledger, 12, 2, starts=STARTS)
    lost = min(ledger.glob("consumed-a0001-s*.parquet"))
    lost.unlink()
    problems = LedgerRows(ledger).problems(0, Reached(12, 2, STARTS))
    assert any(lost.name in problem for problem in problems) and "steps have no row in the ledger" in problems[0]
    shutil.rmtree(ledger)
    ledger.mkdir()
    assert LedgerRows(ledger).problems(0, Reached(12, 2, STARTS)) == ["12 steps have no row in the ledger"]
