"""Exactly once: what the ledger must prove, and each way in which it must fail to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radioplat.data.ledger import proof as module
from radioplat.data.ledger.ledger import REJECTS_SCHEMA, Ledger
from radioplat.data.ledger.proof import prove
from radioplat.errors import DataError

BATCH = 6


class Order:
    """Ids that differ from positions and repeat, as an order of several passes does."""

    def slice(self, start, stop):
        position = np.arange(start, stop, dtype=np.int64)
        return SimpleNamespace(position=position, sample_id=(position * 7 + 3) % 11)


def write(folder, attempt: int, steps: range, world: int = 1, change=lambda step, rows: rows, flush: int = 2) -> None:
    """What ``world`` workers write down of ``steps``, two samples a micro-batch; ``change`` alters a step's rows."""
    books = [Ledger(folder, rank, attempt) for rank in range(world)]
    for step in steps:
        position = np.arange(step * BATCH, (step + 1) * BATCH)
        rows = change(step, np.stack([position, Order().slice(position[0], position[-1] + 1).sample_id], 1))
        for micro in range(0, len(rows), 2):
            part = rows[micro : micro + 2]
            rank = micro // 2 % world
            books[rank].consumed(step, rank, part[:, 0], part[:, 1], np.zeros(len(part)))
        if step % flush == flush - 1:
            [book.flush() for book in books]
    [book.flush() for book in books]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 3 * BATCH)  # so that a small ledger crosses from one to the next


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
    found = prove(folder, Order(), BATCH, reached, attempt=len(starts))
    assert found.holds and found.consumed == found.expected == reached * BATCH
    assert found.replayed == rows - found.consumed


def test_a_dropped_row(tmp_path):
    write(tmp_path, 1, range(5), 2, lambda step, rows: np.delete(rows, 3, 0) if step == 2 else rows)
    found = prove(tmp_path, Order(), BATCH, 5)
    assert not found.holds and (found.missing, found.repeated, found.misplaced, found.consumed) == (1, 0, 0, 29)
    assert found.examples == [f"sample {(15 * 7 + 3) % 11} at position 15, step 2: not seen"]


def test_two_ids_swapped(tmp_path):
    def swap(step, rows):
        rows[[0, 1], 1] = rows[[1, 0], 1]
        return rows

    write(tmp_path, 1, range(3), 1, swap)
    found = prove(tmp_path, Order(), BATCH, 3)
    assert not found.holds and (found.missing, found.repeated, found.misplaced) == (6, 0, 6)
    assert found.consumed == found.expected


def test_a_row_seen_twice(tmp_path):
    write(tmp_path, 1, range(4), 2, lambda step, rows: np.concatenate([rows, rows[5:]]) if step == 3 else rows)
    found = prove(tmp_path, Order(), BATCH, 4)
    assert not found.holds and (found.missing, found.repeated, found.misplaced) == (0, 1, 0)


def test_a_sample_in_a_step_that_is_not_its_own(tmp_path):
    write(tmp_path, 1, range(4), 1, lambda step, rows: rows + [BATCH * 11, 0] if step == 1 else rows)
    found = prove(tmp_path, Order(), BATCH, 4)
    assert not found.holds and (found.missing, found.misplaced) == (6, 6)


def test_a_step_that_nobody_wrote_down(tmp_path):
    write(tmp_path, 1, range(3))
    found = prove(tmp_path, Order(), BATCH, 5, attempt=1)
    assert not found.holds and found.missing == 12


def test_steps_under_another_order_are_not_judged(tmp_path):
    write(tmp_path, 1, range(4), 1, lambda step, rows: rows + [0, 1])
    write(tmp_path, 2, range(2, 6))
    assert not prove(tmp_path, Order(), BATCH, 6, attempt=2).holds
    found = prove(tmp_path, Order(), BATCH, 6, first_step=2, attempt=2)
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
    found = prove(tmp_path, Order(), BATCH, 3, attempt=2)
    assert found.holds and found.rejected == {"min_area": 3}
    assert found.unlearned == {"skipped_step": 4, "non_finite": 2, "corrupt_image": 1, "short_read": 1}


def test_a_ledger_that_cannot_be_read(tmp_path):
    (tmp_path / "consumed-a0001-r00000-000000.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read"):
        prove(tmp_path, Order(), BATCH, 3)
