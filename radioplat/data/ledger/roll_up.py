"""Compare the rows of new steps with the order, and move them from the workers' files into one file a window of steps.

The number of files of a ledger then grows with the checkpoints, not with the workers times the checkpoints, and the
proof at the end of a run has little left to compare. Only steps whose rows are exactly the order's get a window; the
files of others stay as they are, and are compared again at the next checkpoint and at the end.

A process that is killed at any point loses nothing: rows are on disk in their new file, and ``windows.jsonl`` names it,
before their old one is removed; ``moving.json`` says which files may hold rows that are in two places.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.common.atomic_files import sync_folder, written_aside
from radioplat.data.ledger.chain import Chain, Window
from radioplat.data.ledger.compare import compare
from radioplat.data.ledger.files import (
    LedgerFile,
    Unreadable,
    count_rows,
    ledger_files,
    rows_of,
    rows_outside,
    sort_rows,
    write_tables,
    write_window,
)
from radioplat.data.ledger.ledger import REJECTED_SCHEMA
from radioplat.data.ledger.lineage import Part, Reached, led_to, parts_of
from radioplat.data.ledger.loose_files import (
    ABANDONED,
    BY_WORKER,
    MOVE,
    Move,
    is_abandoned,
    is_by_worker,
    is_unnamed,
    loose_files,
    uncovered,
)
from radioplat.data.loading.reader import Order

WINDOW_ROWS = 1 << 21  # at most, in a window and in memory


@dataclass(frozen=True)
class Ordered:
    """The order that steps from ``first_step`` on follow.

    Attributes:
        order: the samples.
        name: hash of the order.
        global_batch: samples of a step; position p belongs to step ``p // global_batch``.
        first_step: the first step of this order.
    """

    order: Order
    name: str
    global_batch: int
    first_step: int = 0


def roll_up(
    directory: Path, ordered: Ordered, reached: Reached, check: Callable[[], None] = lambda: None
) -> list[Window]:
    """Move the rows up to the steps of a checkpoint into windows.

    Only one process may do so at a time: the holder of the folder's lease. All rows up to a committed checkpoint are on
    disk.

    Args:
        directory: of the run's ledger.
        check: called before anything changes for good; raises if another process has taken over.

    Returns:
        The new windows.

    Raises:
        OSError: a file cannot be read, written or removed; a later call goes on where this one ended.
        NewerRecord: a newer version wrote ``windows.jsonl``.
    """
    chain = _trusted(directory)
    _finish(directory)
    unreadable = Unreadable()
    loose = loose_files(directory, chain, unreadable)
    parts = parts_of(chain, loose, ordered.first_step, reached)
    if (step := _first_abandoned(chain, parts, ordered.first_step)) is not None:
        check()
        chain.reopen(step)
        loose = loose_files(directory, chain, unreadable)
    standing = [(window.attempt, *window.steps) for window in chain.windows]
    extra = {file.path for file in loose if _rows_in(file, standing, unreadable)}  # beyond those of a window: they stay
    over = [
        file
        for file in loose
        if file.path not in extra
        and file.first >= ordered.first_step
        and _has_no_later_rows(file, loose, reached, parts)
    ]
    read = [file for file in loose if file.path not in extra and is_by_worker(file.path.name) and _meets(file, parts)]
    names = {file.path.name for file in (*over, *read)} | set(Move.read(directory).files)
    move = Move(uuid.uuid4().hex[:8], sorted(names))
    check()
    move.write(directory)
    windows: list[Window] = []
    open_steps: list[Part] = []
    for part in _steps_without_window(chain, parts, ordered.global_batch):
        rows = sort_rows(rows_of(loose, part[0], part[1:], unreadable))
        if len(rows) and compare(rows, ordered.order, ordered.global_batch, *part[1:]).holds:
            windows.append(_write(directory, chain, ordered, part, rows, check))
        else:
            open_steps.append(part)
    finished = [file for file in over if file.path not in unreadable and not _rows_in(file, open_steps, unreadable)]
    _write_abandoned(directory, chain, finished, move.mark, unreadable)
    check()
    finished = [file for file in finished if file.path not in unreadable]
    moved = {file.path.name for file in finished} | _copies(directory, chain, move, loose, finished)
    # Of other files the steps of windows never count, also without a note.
    left = [name for name in move.files if is_by_worker(name) and name not in moved and (directory / name).exists()]
    Move(move.mark, left, sorted(moved), done=True).write(directory)
    _finish(directory)
    _remove_covered(directory, chain)
    _merge_rejected(directory)
    return windows


def _first_abandoned(chain: Chain, parts: Sequence[Part], first_step: int) -> int | None:
    """Return the first step of the windows that did not lead to the checkpoint of ``parts``; None if all did."""
    end = parts[-1][2] if parts else 0
    for window in chain.windows:
        if first_step < window.stop and window.start < end and not led_to(window, parts, first_step):
            return window.start
    return None


def _meets(file: LedgerFile, parts: Sequence[Part]) -> bool:
    """Return True if a file may have rows of one of the parts."""
    return any(file.attempt == number and file.first < stop and start <= file.last for number, start, stop in parts)


def _has_no_later_rows(file: LedgerFile, loose: Sequence[LedgerFile], reached: Reached, parts: Sequence[Part]) -> bool:
    """Return True if no row of a file may be of steps that lead to a later checkpoint, so that it can be moved.

    A file of abandoned steps moves only if a window with some of its rows was taken back.
    """
    last = reached.attempt or (parts[-1][0] if parts else 0)
    if is_abandoned(file.path.name):
        taken_back = [each for each in loose if each.attempt == file.attempt and is_unnamed(each.path.name)]
        return any(each.first <= file.last and file.first <= each.last for each in taken_back)
    return file.last < reached.steps if file.attempt == last else file.attempt < last


def _steps_without_window(chain: Chain, parts: Sequence[Part], global_batch: int) -> Iterator[Part]:
    """Yield the steps that are in no window, in pieces of at most :data:`WINDOW_ROWS` rows."""
    span = max(1, WINDOW_ROWS // global_batch)
    done = [window.steps for window in chain.windows]
    for number, first, last in parts:
        for start, stop in uncovered((first, last), done):
            for low in range(start, stop, span):
                yield number, low, min(low + span, stop)


def _write(
    directory: Path, chain: Chain, ordered: Ordered, part: Part, rows: pa.Table, check: Callable[[], None]
) -> Window:
    """Write a window's file, and then its line."""
    attempt, start, stop = part
    # An object store with a copy of the ledger never gets two files of one name.
    path = directory / f"consumed-a{attempt:04d}-s{start:09d}-{stop:09d}-{uuid.uuid4().hex[:8]}.parquet"
    blocks = write_window(rows, path)
    sync_folder(directory)
    check()
    window = Window(attempt, start, stop, ordered.name, path.name, path.stat().st_size, len(rows), blocks)
    chain.add(window)
    return window


def _rows_in(file: LedgerFile, parts: Sequence[Part], unreadable: Unreadable) -> int:
    return count_rows(file, [(start, stop) for number, start, stop in parts if number == file.attempt], unreadable)


def _write_abandoned(
    directory: Path, chain: Chain, files: Sequence[LedgerFile], mark: str, unreadable: Unreadable
) -> None:
    """Write the rows of ``files`` that are in no window into one file an attempt."""
    for attempt in sorted({file.attempt for file in files}):
        mine = [file for file in files if file.attempt == attempt]
        windows = [window.steps for window in chain.windows if window.attempt == attempt]
        tables = (rows_outside(file, windows, unreadable) for file in mine)
        write_tables(tables, directory / f"abandoned-a{attempt:04d}-{mark}.parquet")
    sync_folder(directory)


def _copies(
    directory: Path, chain: Chain, move: Move, loose: Sequence[LedgerFile], finished: Sequence[LedgerFile]
) -> set[str]:
    """Return the names of files that do not count, since all their rows are in windows, or in files that move now."""
    names = set(move.files) | {path.name for path in directory.glob(ABANDONED) if move.mark not in path.name}
    names -= {file.path.name for file in loose}
    files = ledger_files([directory / name for name in names if (directory / name).exists()], Unreadable())
    copies = set()
    for file in files:
        elsewhere = [window.steps for window in chain.windows if window.attempt == file.attempt]
        elsewhere += [(f.first, f.last + 1) for f in finished if f.attempt == file.attempt and is_unnamed(f.path.name)]
        if not uncovered((file.first, file.last + 1), elsewhere):
            copies.add(file.path.name)
    return copies


def clear_copies(directory: Path) -> None:
    """Remove workers' files from a copy of a ledger whose rows are in windows or files of abandoned steps there, too.

    The copy has no ``moving.json``: files that were moved may be in it still, beside those that they were moved to.

    Raises:
        OSError: a file cannot be read or removed.
    """
    chain, unreadable = Chain(directory), Unreadable()
    by_worker = [path.name for path in directory.glob(BY_WORKER)]
    Move(files=by_worker).write(directory)
    abandoned = ledger_files(directory.glob(ABANDONED), unreadable)
    for file in ledger_files((directory / name for name in by_worker), unreadable):
        elsewhere = [window.steps for window in chain.windows if window.attempt == file.attempt]
        elsewhere += [(each.first, each.last + 1) for each in abandoned if each.attempt == file.attempt]
        if not uncovered((file.first, file.last + 1), elsewhere):
            file.path.unlink()


def _finish(directory: Path) -> None:
    """Remove files whose rows were all moved, and those of abandoned steps that were not finished."""
    move = Move.read(directory)
    if move.done:
        for name in move.moved:
            (directory / name).unlink(missing_ok=True)
        if move.files:
            Move(files=move.files).write(directory)
        else:
            (directory / MOVE).unlink(missing_ok=True)
    elif move.mark:
        for path in directory.glob(f"abandoned-a*-{move.mark}.parquet"):
            path.unlink(missing_ok=True)


def _remove_covered(directory: Path, chain: Chain) -> None:
    """Remove files of windows without a line whose steps are all in windows with one."""
    paths = [path for path in directory.glob("consumed-a*-s*.parquet") if path.name not in chain.files]
    for file in ledger_files(paths, Unreadable()):
        windows = [window.steps for window in chain.windows if window.attempt == file.attempt]
        if not uncovered((file.first, file.last + 1), windows):
            file.path.unlink(missing_ok=True)


def _trusted(directory: Path) -> Chain:
    """Return the chain; one that is broken is set aside, and a new one begins with the files that are there."""
    chain = Chain(directory)
    if chain.broken:
        number = 1
        while (aside := directory / f"windows.broken-{number}.jsonl").exists():
            number += 1
        chain.path.rename(aside)
        chain = Chain(directory)
    return chain


def _merge_rejected(directory: Path) -> None:
    """Merge the workers' files of rejected samples into one; a row that is in two files counts once."""
    unreadable = Unreadable()
    paths = sorted(directory.glob("rejected-a*-r*.parquet"))
    tables = [unreadable.read(path, lambda path: pq.read_table(path, schema=REJECTED_SCHEMA, partitioning=None))
              for path in paths]  # fmt: skip
    readable = [table for table in tables if table is not None]
    if len(readable) > 1:
        merged = directory / f"rejected-a0000-s-{uuid.uuid4().hex[:8]}.parquet"
        with written_aside(merged, sync=True) as aside:
            pq.write_table(pa.concat_tables(readable), aside)
        sync_folder(directory)
        for path in paths:
            if path not in unreadable:
                path.unlink(missing_ok=True)
