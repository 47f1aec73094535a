"""Compare the rows of new steps with the order, and move them from the workers' files into one file a window of steps.

The number of files of a ledger then grows with the checkpoints, not with the workers times the checkpoints, and the
proof at the end of a run has little left to compare. A process that is killed at any point loses nothing: a file counts
once ``windows.jsonl`` names it, and sources are removed after that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.common.atomic_files import sync_folder
from radioplat.data.ledger.chain import Chain, Window
from radioplat.data.ledger.compare import compare
from radioplat.data.ledger.files import Gaps, LedgerFile, ledger_files, rows_of, sort_rows, write_window
from radioplat.data.ledger.ledger import CONSUMED_SCHEMA, lineage
from radioplat.data.loading.reader import Order

ROWS = 1 << 21  # at most, in a window and in memory


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


def roll_up(directory: Path, ordered: Ordered, final_step: int, attempt: int | None = None) -> list[Path]:
    """Move the rows up to the steps of a checkpoint into windows, which are compared with the order.

    Only one process may do so at a time: the holder of the folder's lease. The checkpoint must be committed, since all
    rows up to its steps are on disk then.

    Args:
        directory: of the run's ledger.
        final_step: number of steps of the checkpoint.
        attempt: the one that wrote it; default: the last.

    Returns:
        The new files.

    Raises:
        OSError: a file cannot be read, written or removed; a later call goes on where this one ended.
        NewerRecord: a newer version wrote ``windows.jsonl``.
    """
    chain = Chain(directory)
    if chain.broken:
        return []  # the proof says so, and compares every row
    _tidy(directory, chain)
    gaps = Gaps()
    sources = unrolled(directory, chain, gaps)
    parts = parts_of(chain, sources, ordered.first_step, final_step, attempt)
    if (step := _not_led(chain, parts, ordered.first_step)) is not None:
        chain.reopen(step)
        sources = unrolled(directory, chain, gaps)
    written: list[Path] = []
    span = max(1, ROWS // ordered.global_batch)
    begin = max(chain.stop, ordered.first_step)
    for number, first, stop in parts:
        for start in range(max(first, begin), stop, span):
            end = min(start + span, stop)
            last = end == final_step
            taken = [f for f in sources if _is_over(f, number, end, stop, last) and f.first >= ordered.first_step]
            written += _move(directory, chain, ordered, sources, taken, (number, start, end), gaps)
            sources = [file for file in sources if file not in taken]
    return written


def unrolled(directory: Path, chain: Chain, gaps: Gaps) -> list[LedgerFile]:
    """Return the files whose rows are in no window: those of workers, and those of windows that were reopened."""
    paths = [path for path in directory.glob("consumed-a*.parquet") if is_source(path, chain)]
    return ledger_files(paths, gaps)


def is_source(path: Path, chain: Chain) -> bool:
    """Return True if the rows of a file count, and no window that stands contains them."""
    name = path.name
    if name in chain.files or name in chain.sources:
        return False
    return "-s" not in name or name in chain.reopened  # else a killed process had not finished with it


def parts_of(
    chain: Chain, sources: Sequence[LedgerFile], first_step: int, final_step: int, attempt: int | None
) -> list[tuple[int, int, int]]:
    """Return ``(attempt, start, stop)`` of the steps from ``first_step`` on that led to a checkpoint."""
    spans: dict[int, tuple[int, int]] = {}
    known = [(window.attempt, window.start, window.stop - 1) for window in chain.windows]
    for number, first, last in [*known, *((file.attempt, file.first, file.last) for file in sources)]:
        low, high = spans.get(number, (first, last))
        spans[number] = min(low, first), max(high, last)
    led = lineage(spans, final_step, attempt)
    return [(number, max(start, first_step), stop) for number, start, stop in led if stop > first_step]


def _not_led(chain: Chain, parts: Sequence[tuple[int, int, int]], first_step: int) -> int | None:
    """Return the step from which windows did not lead to the checkpoint that ``parts`` end with; None if all did."""
    covered = {number: (start, stop) for number, start, stop in parts}
    end = parts[-1][2] if parts else 0
    for window in chain.windows:
        start, stop = covered.get(window.attempt, (0, 0))
        if first_step < window.stop and window.start < end and not (start <= window.start and window.stop <= stop):
            return window.start
    return None


def _is_over(file: LedgerFile, attempt: int, end: int, stop: int, last: bool) -> bool:
    """Return True if no row of ``file`` is of a later window.

    Args:
        attempt: of the window.
        end: of the window.
        stop: of the steps of that attempt that led to the checkpoint.
        last: True for the last window before the checkpoint.
    """
    if file.attempt == attempt:
        return file.last < end or (end == stop and not last)
    return file.attempt < attempt


def _move(
    directory: Path,
    chain: Chain,
    ordered: Ordered,
    sources: Sequence[LedgerFile],
    taken: Sequence[LedgerFile],
    steps: tuple[int, int, int],
    gaps: Gaps,
) -> Iterator[Path]:
    """Write one window, then remove the files that are not needed after it; yield the new files."""
    attempt, start, stop = steps
    rows = sort_rows(rows_of(sources, attempt, start, stop, gaps))
    result = compare(rows, ordered.order, ordered.global_batch, start, stop)
    mark = uuid.uuid4().hex[:8]  # an object store with a copy of the ledger never gets two files of one name
    path = directory / f"consumed-a{attempt:04d}-s{start:09d}-{stop:09d}-{mark}.parquet"
    blocks = write_window(rows, path)
    inside = [*((window.attempt, window.start, window.stop) for window in chain.windows), steps]
    again = _outside(taken, inside, gaps)
    again_path = directory / f"replayed-s{start:09d}-{stop:09d}-{mark}.parquet"
    if len(again):
        write_window(again, again_path)
    sync_folder(directory)
    unreadable = {path.name: why for path, why in gaps.items()}
    moved = [file.path for file in taken if file.path not in gaps]
    chain.add(
        Window(
            attempt, start, stop, ordered.name, path.name, len(rows), blocks,
            result.missing, result.repeated, result.misplaced, result.examples, unreadable,
            [source.name for source in moved], len(again), again_path.name if len(again) else "",
        )
    )  # fmt: skip
    for source in moved:
        source.unlink(missing_ok=True)
    yield path
    if len(again):
        yield again_path


def _outside(files: Sequence[LedgerFile], inside: Sequence[tuple[int, int, int]], gaps: Gaps) -> pa.Table:
    """Read the rows of ``files`` that are in none of the windows ``(attempt, start, stop)``."""
    tables = [CONSUMED_SCHEMA.empty_table()]
    for file in files:
        mine = [(start, stop) for attempt, start, stop in inside if attempt == file.attempt]
        if any(start <= file.first and file.last < stop for start, stop in mine):
            continue
        table = gaps.read(file.path, lambda path: pq.read_table(path, schema=CONSUMED_SCHEMA, partitioning=None))
        if table is not None:
            step = table["step"].to_numpy()
            keep = np.ones(len(step), bool)
            for start, stop in mine:
                keep &= (step < start) | (step >= stop)
            tables.append(table.filter(pa.array(keep)))
    return pa.concat_tables(tables)


def _tidy(directory: Path, chain: Chain) -> None:
    """Remove what a killed process left: files that ``windows.jsonl`` does not name yet, and sources that it moved."""
    for name in chain.sources:
        (directory / name).unlink(missing_ok=True)
    for path in directory.glob("consumed-a*-s*.parquet"):
        if path.name not in chain.files and path.name not in chain.reopened:
            path.unlink(missing_ok=True)
    for path in directory.glob("replayed-s*.parquet"):
        if path.name not in chain.replayed:
            path.unlink(missing_ok=True)
