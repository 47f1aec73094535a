"""Files and lines of the ledger that are damaged or lost are named, and cost no rows that are still there."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_ledger import BATCH, Killed, counted, prove, roll, write

from radioplat.data.ledger import chain, files, loose_files
from radioplat.tracking.record_versions import NewerRecord, Versions

pytestmark = pytest.mark.usefixtures("small_windows")


@pytest.mark.parametrize(
    ("column", "wrong"), [("id", "differs from the order"), ("checksum", "is not what was written")]
)
def test_a_file_that_is_changed_later_is_named_and_compared_again(tmp_path, column, wrong):
    write(tmp_path, 1, range(8))
    roll(tmp_path, 8, 1)
    path = sorted(tmp_path.glob("consumed-a*-s*"))[1]
    rows = pq.read_table(path)
    values = rows[column].to_numpy().copy()
    values[3] ^= 1
    place = rows.schema.get_field_index(column)
    size = path.stat().st_size
    files.write_window(rows.set_column(place, rows.schema.field(column), [values]), path)
    result = prove(tmp_path, 8)
    if path.stat().st_size != size:
        assert result.unreadable == {path: f"it has {path.stat().st_size} bytes, {size} were written"}
    else:
        assert list(result.unreadable) == [path] and wrong in result.unreadable[path]
    assert (result.missing, result.misplaced) == ((1, 1) if column == "id" else (0, 0))
    path.unlink()
    result = prove(tmp_path, 8)
    assert result.unreadable == {path: "it is missing"} and result.missing == 4 * BATCH and result.replayed == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0].replace('"rows": 24', '"rows": 23'), lines[1]],
        lambda lines: lines[1:],
        lambda lines: [lines[0].replace('"stop": 4', '"stop": "4"'), lines[1]],
        lambda lines: [lines[0].replace('"blocks"', '"block"'), lines[1]],
    ],
)
def test_a_changed_line_is_named_and_every_row_is_compared(tmp_path, change):
    write(tmp_path, 1, range(8), world=2)
    roll(tmp_path, 8, 1)
    path = tmp_path / chain.NAME
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    result = prove(tmp_path, 8)
    assert result.holds and result.checked == result.consumed
    assert "was changed" in result.unreadable[path] and "every row is compared" in result.unreadable[path]
    write(tmp_path, 1, range(8, 12), world=2)
    roll(tmp_path, 12, 1)  # begins anew, and keeps the old lines
    result = prove(tmp_path, 12)
    assert result.holds and not result.unreadable and (tmp_path / "windows.broken-1.jsonl").exists()
    assert not list(tmp_path.glob("consumed-a*-r*"))


@pytest.mark.parametrize("left", ["no file", "nothing", "the first line"])
def test_lines_that_are_lost_cost_no_rows(tmp_path, left):
    write(tmp_path, 1, range(8), world=2)
    roll(tmp_path, 8, 1)
    path = tmp_path / chain.NAME
    content = path.read_bytes()
    path.unlink()
    if left != "no file":
        path.write_bytes(b"" if left == "nothing" else content.splitlines(keepends=True)[0])
    assert counted(tmp_path, 8, 1) == (48, 48, 0, 0, 0, 0, 0)
    write(tmp_path, 1, range(8, 10), world=2)
    roll(tmp_path, 10, 1)
    assert counted(tmp_path, 10, 1) == (60, 60, 0, 0, 0, 0, 0)
    assert not list(tmp_path.glob("consumed-a*-r*")) and prove(tmp_path, 10, 1, full=True).holds


def test_a_line_that_a_killed_process_left_half_is_no_fault(tmp_path):
    write(tmp_path, 1, range(4))
    roll(tmp_path, 4, 1)
    with open(tmp_path / chain.NAME, "a") as file:
        file.write('{"kind": "window", "att')
    write(tmp_path, 2, range(4, 8))
    roll(tmp_path, 8, 2)
    result = prove(tmp_path, 8)
    assert result.holds and not result.unreadable


def test_lines_of_a_newer_version_are_refused(tmp_path):
    write(tmp_path, 1, range(4))
    roll(tmp_path, 4, 1)
    path = tmp_path / chain.NAME
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    Versions("9.9", {}).write(tmp_path)
    with pytest.raises(NewerRecord, match="line 1 has schema 2, written by radioplat 9.9; .* reads up to schema 1"):
        prove(tmp_path, 4)


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
        roll(tmp_path, 8, 1)
    monkeypatch.setattr(files.pq, "read_table", read)
    roll(tmp_path, 8, 1)
    result = prove(tmp_path, 8)
    assert result.holds and not result.unreadable


def test_a_damaged_file_is_kept_and_counts_once_it_is_brought_back(tmp_path):
    write(tmp_path, 1, range(8), world=2)
    damaged = sorted(tmp_path.glob("*.parquet"))[2]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-9])
    roll(tmp_path, 8, 1)
    write(tmp_path, 1, range(8, 12), world=2)
    roll(tmp_path, 12, 1)
    assert not prove(tmp_path, 12).holds
    damaged.write_bytes(content)
    assert prove(tmp_path, 12).holds
    roll(tmp_path, 12, 1)
    assert counted(tmp_path, 12) == (72, 72, 0, 0, 0, 0, 0) and not list(tmp_path.glob("consumed-a*-r*"))


def test_a_full_disk_ends_no_line_in_the_middle_unnoticed(tmp_path, monkeypatch):
    write(tmp_path, 1, range(8), world=2)
    put = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: put(handle, data[:100]))
    with pytest.raises(OSError, match="No space left"):
        roll(tmp_path, 8, 1)
    monkeypatch.setattr(os, "write", put)
    assert counted(tmp_path, 8) == (48, 48, 0, 0, 0, 0, 0)
    roll(tmp_path, 8, 1)
    assert counted(tmp_path, 8) == (48, 48, 0, 0, 0, 0, 0)


def test_a_torn_list_of_moved_files_counts_no_row_twice(tmp_path, kill_at):
    write(tmp_path, 1, range(8), world=2)
    kill_at(5)  # windows have their lines, and the workers' files are still there
    with pytest.raises(Killed):
        roll(tmp_path, 8, 1)
    kill_at(None)
    assert chain.Chain(tmp_path).windows and list(tmp_path.glob("consumed-a*-r*"))
    path = tmp_path / loose_files.MOVE
    path.write_bytes(path.read_bytes()[:20])
    assert counted(tmp_path, 8, 1) == (48, 48, 0, 0, 0, 0, 0)
    roll(tmp_path, 8, 1)
    assert counted(tmp_path, 8, 1) == (48, 48, 0, 0, 0, 0, 0) and not list(tmp_path.glob("consumed-a*-r*"))


def test_workers_files_that_are_brought_back_replace_a_window_that_was_lost(tmp_path):
    write(tmp_path, 1, range(8), world=2)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    roll(tmp_path, 8, 1)
    sorted(tmp_path.glob("consumed-a*-s*"))[0].unlink()
    assert prove(tmp_path, 8, 1).missing == 4 * BATCH
    kept = {name for name in before if pq.read_table(pa.BufferReader(before[name]))["step"][0].as_py() < 4}
    for name in kept:
        (tmp_path / name).write_bytes(before[name])
    assert prove(tmp_path, 8, 1).holds
    roll(tmp_path, 8, 1)
    assert counted(tmp_path, 8, 1) == (48, 48, 0, 0, 0, 0, 0) and not list(tmp_path.glob("consumed-a*-r*"))
