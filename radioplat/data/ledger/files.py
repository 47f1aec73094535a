"""The Parquet files of consumed rows, and their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.common.atomic_files import written_aside
from radioplat.data.ledger.ledger import CONSUMED_SCHEMA

BLOCK_ROWS = 1 << 16  # of a row group of a window's file, of which each can be read and compared alone
COMPARED = ["position", "id", "step"]
_WRITING: dict[str, Any] = {
    "compression": "none",
    "use_dictionary": ["attempt", "rank"],
    "column_encoding": {name: "DELTA_BINARY_PACKED" for name in ("step", "position", "id", "checksum")},
}
Steps = tuple[int, int]  # first step, and last step plus 1
Result = TypeVar("Result")


@dataclass(frozen=True)
class LedgerFile:
    """A file of consumed rows.

    Attributes:
        attempt: the one that wrote the rows.
        first, last: the first and last step in it.
        rows: in the file.
        elsewhere: steps whose rows are in another file, too; those in this one do not count.
    """

    path: Path
    attempt: int
    first: int
    last: int
    rows: int
    elsewhere: tuple[Steps, ...] = ()


class Unreadable(dict[Path, str]):
    """Damaged files of a ledger, with the reason."""

    def read(self, path: Path, read: Callable[[Path], Result]) -> Result | None:
        """Return what ``read`` returns; if the file is damaged, remember that and return None.

        Raises:
            OSError: the file is not there, or its storage fails: it may be read later.
        """
        try:
            return read(path)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:  # Arrow's own errors of damaged files have none
                raise
            self[path] = str(error).splitlines()[0] if str(error) else type(error).__name__
            return None


def ledger_files(paths: Iterable[Path], unreadable: Unreadable) -> list[LedgerFile]:
    """Read the footers of files of consumed rows; those without rows are left out.

    Raises:
        OSError: as :meth:`Unreadable.read`.
    """
    place = CONSUMED_SCHEMA.get_field_index("step")
    files = []
    for path in sorted(paths):
        footer = unreadable.read(path, pq.read_metadata)
        groups = [] if footer is None else [footer.row_group(i) for i in range(footer.num_row_groups)]
        steps = [group.column(place).statistics for group in groups if group.num_rows]
        if footer is not None and steps:
            first, last = min(step.min for step in steps), max(step.max for step in steps)
            files.append(LedgerFile(path, attempt_in(path.name), first, last, footer.num_rows))
    return files


def attempt_in(name: str) -> int:
    """Return the attempt that wrote the file ``name``."""
    return int(name.partition("-a")[2].partition("-")[0])


def rows_of(
    files: Iterable[LedgerFile],
    attempt: int,
    steps: Steps,
    unreadable: Unreadable,
    columns: list[str] | None = None,
) -> pa.Table:
    """Read the rows of some steps that ``attempt`` wrote, without those that do not count.

    Args:
        columns: default: all; ``step`` must be one of them.

    Raises:
        OSError: as :meth:`Unreadable.read`.
    """
    start, stop = steps
    names = columns or CONSUMED_SCHEMA.names
    tables = [pa.schema([CONSUMED_SCHEMA.field(name) for name in names]).empty_table()]
    for file in files:
        if file.attempt == attempt and file.first < stop and file.last >= start:
            table = unreadable.read(file.path, lambda path: _read(path, names))
            if table is not None:
                whole = file.first >= start and file.last < stop and not file.elsewhere
                tables.append(table if whole else _of_steps(table, [steps], file.elsewhere))
    return pa.concat_tables(tables)


def count_rows(file: LedgerFile, ranges: Sequence[Steps], unreadable: Unreadable) -> int:
    """Return how many rows of ``file`` that count are of the given ranges of steps.

    Raises:
        OSError: as :meth:`Unreadable.read`.
    """
    near = [(start, stop) for start, stop in ranges if start <= file.last and file.first < stop]
    if not near:
        return 0
    if not file.elsewhere and any(start <= file.first and file.last < stop for start, stop in near):
        return file.rows
    table = unreadable.read(file.path, lambda path: _read(path, ["step"]))
    return 0 if table is None else len(_of_steps(table, near, file.elsewhere))


def rows_outside(file: LedgerFile, ranges: Sequence[Steps], unreadable: Unreadable) -> pa.Table:
    """Read the rows of ``file`` that count and are of none of the given ranges of steps.

    Raises:
        OSError: as :meth:`Unreadable.read`.
    """
    if any(start <= file.first and file.last < stop for start, stop in ranges):
        return CONSUMED_SCHEMA.empty_table()
    table = unreadable.read(file.path, lambda path: _read(path, CONSUMED_SCHEMA.names))
    every = (file.first, file.last + 1)
    return CONSUMED_SCHEMA.empty_table() if table is None else _of_steps(table, [every], [*ranges, *file.elsewhere])


def _of_steps(table: pa.Table, inside: Sequence[Steps], outside: Sequence[Steps]) -> pa.Table:
    step = table["step"].to_numpy()
    keep = np.zeros(len(step), bool)
    for start, stop in inside:
        keep |= (step >= start) & (step < stop)
    for start, stop in outside:
        keep &= (step < start) | (step >= stop)
    return table.filter(pa.array(keep))


def _read(path: Path, columns: list[str]) -> pa.Table:
    return pq.read_table(path, columns=columns, schema=CONSUMED_SCHEMA, partitioning=None)


def sort_rows(rows: pa.Table) -> pa.Table:
    """Return the rows sorted by position, in one piece of memory."""
    return rows.sort_by([("position", "ascending"), ("step", "ascending")]).combine_chunks()


def write_window(rows: pa.Table, path: Path) -> list[str]:
    """Write rows in row groups of :data:`BLOCK_ROWS`; return the digest of each.

    Raises:
        OSError: the file cannot be written.
    """
    with written_aside(path, sync=True) as aside:
        pq.write_table(rows, aside, row_group_size=BLOCK_ROWS, **_WRITING)
    return [digest(rows.slice(start, BLOCK_ROWS)) for start in range(0, len(rows), BLOCK_ROWS)]


def write_tables(tables: Iterable[pa.Table], path: Path) -> int:
    """Write tables of rows one after the other; return the number of rows, and write no file for none.

    Raises:
        OSError: the file cannot be written.
    """
    rows = 0
    with written_aside(path, sync=True) as aside:
        with pq.ParquetWriter(aside, CONSUMED_SCHEMA, **_WRITING) as writer:
            for table in tables:
                rows += len(table)
                if len(table):
                    writer.write_table(table)
    if not rows:
        path.unlink()
    return rows


def read_block(path: Path, number: int) -> pa.Table:
    """Read one row group of a window's file."""
    with pq.ParquetFile(path) as file:
        return file.read_row_group(number)


def digest(rows: pa.Table) -> str:
    """Return the first 16 bytes (hex) of the SHA-256 of all columns, one after the other, as int64, little-endian."""
    total = hashlib.sha256()
    for name in CONSUMED_SCHEMA.names:
        total.update(np.ascontiguousarray(rows[name].to_numpy(), "<i8").data)
    return total.hexdigest()[:32]
