"""Exactly once: what the ledger must prove, and each way in which it must fail to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_ledger import BATCH, ORDERED, write

from radioplat.data.ledger import files as module
from radioplat.data.ledger import proof as whole
from radioplat.data.ledger.ledger import REJECTS_SCHEMA, Ledger
from radioplat.data.ledger.lineage import Reached


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(whole, "WINDOW_ROWS", 3 * BATCH)  # so that a small ledger crosses from one to the next


def prove(folder, final_step: int, first_step: int = 0, attempt: int | None = None, **how):
    return whole.prove(folder, replace(ORDERED, first_step=first_step), Reached(final_step, attempt), **how)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(
    starts=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=4),
    lost=st.integers(0, 3),
)
def test_any_chain_of_starts_on_any_number_of_workers_holds(tmp_path_factory, starts, lost):
    folder, reached, rows = tmp_path_factory.mktemp("ledger"), 0, 0
    for attempt, (back, ahead, world) in enumerate(starts, start=1):
        first = max(0, reached - back)  # the checkpoint it goes on from
        reached = first + ahead
        write(folder, attempt, range(first, reached + lost), world)
        rows += (ahead + lost) * BATCH
    found = prove(folder, reached, attempt=len(starts))
    assert found.holds and found.consumed == found.expected == reached * BATCH
    assert found.replayed == rows - found.consumed


def test_a_dropped_row(tmp_path):
    write(tmp_path, 1, range(5), 2, lambda step, rows: np.delete(rows, 3, 0) if step == 2 else rows)
    found = prove(tmp_path, 5)
    assert not found.holds and (found.missing, found.repeated, found.misplaced, found.consumed) == (1, 0, 0, 29)
    assert found.examples == [f"sample {(15 * 7 + 3) % 11} at position 15, step 2: not seen"]


def test_two_ids_swapped(tmp_path):
    def swap(step, rows):
        rows[[0, 1], 1] = rows[[1, 0], 1]
        return rows

    write(tmp_path, 1, range(3), 1, swap)
    found = prove(tmp_path, 3)
    assert not found.holds and (found.missing, found.repeated, found.misplaced) == (6, 0, 6)
    assert found.consumed == found.expected


def test_a_row_seen_twice(tmp_path):
    write(tmp_path, 1, range(4), 2, lambda step, rows: np.concatenate([rows, rows[5:]]) if step == 3 else rows)
    found = prove(tmp_path, 4)
    assert not found.holds and (found.missing, found.repeated, found.misplaced) == (0, 1, 0)


def test_a_sample_in_a_step_that_is_not_its_own(tmp_path):
    write(tmp_path, 1, range(4), 1, lambda step, rows: rows + [BATCH * 11, 0] if step == 1 else rows)
    found = prove(tmp_path, 4)
    assert not found.holds and (found.missing, found.misplaced) == (6, 6)


def test_a_step_that_nobody_wrote_down(tmp_path):
    write(tmp_path, 1, range(3))
    found = prove(tmp_path, 5, attempt=1)
    assert not found.holds and found.missing == 12


def test_steps_under_another_order_are_not_judged(tmp_path):
    write(tmp_path, 1, range(4), 1, lambda step, rows: rows + [0, 1])
    write(tmp_path, 2, range(2, 6))
    assert not prove(tmp_path, 6, attempt=2).holds
    found = prove(tmp_path, 6, first_step=2, attempt=2)
    assert found.holds and (found.expected, found.before, found.replayed) == (24, 12, 12)


def test_rejects_by_reason_and_only_of_the_steps_that_count(tmp_path):
    book = Ledger(tmp_path, 0, 1)
    book.rejected(1, 0, np.array([6]), np.array([1]), ["corrupt_image: cut"])  # replayed below
    book.rejected(0, 0, np.array([3]), np.array([1]), ["short_read: 3 of 9 bytes"])
    write(tmp_path, 1, range(2))
    book.flush()
    book = Ledger(tmp_path, 0, 2)
    skipped = np.arange(6, 12)
    book.rejected(1, 0, skipped[:1], skipped[:1], ["corrupt_image: cut"])
    book.rejected(1, 0, skipped, skipped, ["non_finite: loss/a"] * 2 + ["skipped_step"] * 4)
    book.flush()
    write(tmp_path, 2, range(1, 3))
    rows = [{"id": 1, "shard": "a", "key": "k", "reason": "min_area", "detail": ""}]
    pq.write_table(
        REJECTS_SCHEMA.empty_table().from_pylist(rows * 3, schema=REJECTS_SCHEMA), tmp_path / "rejects.parquet"
    )
    found = prove(tmp_path, 3, attempt=2)
    assert found.holds and found.rejected == {"min_area": 3}
    assert found.unlearned == {"skipped_step": 4, "non_finite": 2, "corrupt_image": 1, "short_read": 1}


def test_a_file_that_cannot_be_read_is_one_named_gap(tmp_path):
    """The rest is compared without it."""
    write(tmp_path, 1, range(6))
    damaged = sorted(tmp_path.glob("*.parquet"))[1]
    for content in (b"", b"PAR1 and no more", damaged.read_bytes()[:-9]):
        damaged.write_bytes(content)
        found = prove(tmp_path, 6)
        assert list(found.unreadable) == [damaged] and found.unreadable[damaged]
        assert not found.holds and (found.missing, found.consumed, found.replayed) == (12, 24, 0)


def test_the_middle_of_a_file_that_cannot_be_read(tmp_path):
    write(tmp_path, 1, range(6))
    damaged = sorted(tmp_path.glob("*.parquet"))[1]
    content = damaged.read_bytes()
    footer = 8 + int.from_bytes(content[-8:-4], "little")
    damaged.write_bytes(b"PAR1" + bytes(len(content) - footer - 4) + content[-footer:])
    found = prove(tmp_path, 6)
    assert list(found.unreadable) == [damaged] and not found.holds and found.missing == 12


def test_each_file_is_opened_as_often_in_a_long_run(tmp_path, monkeypatch):
    """The rows of a file are in a few windows, however many windows and files there are."""
    opened = {}
    for steps in (12, 48):
        folder = tmp_path / str(steps)
        write(folder, 1, range(steps))
        names: list[str] = []
        read = module.pq.read_table
        monkeypatch.setattr(module.pq, "read_table", lambda path, **how: names.append(path.name) or read(path, **how))  # noqa: B023
        assert prove(folder, steps).holds
        monkeypatch.setattr(module.pq, "read_table", read)
        opened[steps] = len(names) / len(list(folder.glob("*.parquet")))
    assert opened[48] <= opened[12] <= 2


@pytest.mark.parametrize(("bad", "learnt"), [(50, True), (51, False)])
def test_more_samples_without_weight_than_are_accepted(tmp_path, bad, learnt):
    """Of at least a thousand; one that was bad in a skipped step counts once, one of a single colour not at all."""
    write(tmp_path, 1, range(20))
    book, rows = Ledger(tmp_path, 0, 1), np.arange(bad)
    for row in rows:
        book.rejected(int(row) // BATCH, 0, rows[row : row + 1], rows[row : row + 1], ["missing_file: gone"])
    book.rejected(0, 0, rows[:3], rows[:3], ["skipped_step"] * 3)
    book.rejected(15, 0, np.array([90]), np.array([1]), ["uniform_color: 3"])
    book.flush()
    found = prove(tmp_path, 20, most_without_weight=0.05)
    assert found.holds and found.learnt is learnt and found.without_weight == bad
    assert found.unlearned == {"missing_file": bad, "skipped_step": 3, "uniform_color": 1}
