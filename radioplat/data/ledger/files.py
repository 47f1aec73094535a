"""The Parquet files of consumed rows: those that each worker writes, and those that a window of steps is moved into."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radioplat.common.atomic_files import written_aside
from radioplat.data.ledger.ledger import CONSUMED_SCHEMA

BLOCK = 1 << 16  # rows of a row group of a window's file, of which each can be read and checked alone
COMPARED = ["position", "id", "step"]
_PACKED = {name: "DELTA_BINARY_PACKED" for name in ("step", "position", "id", "checksum")}
Result = TypeVar("Result")


@dataclass(frozen=True)
class LedgerFile:
    """A file of the ledger: the attempt that wrote it, its first and last step, and its number of rows."""

    path: Path
    attempt: int
    first: int
    last: int
    rows: int


class Gaps(dict[Path, str]):
    """Damaged files of a ledger, with the reason."""

    def read(self, path: Path, read: Callable[[Path], Result]) -> Result | None:
        """Return what ``read`` returns; if the file is damaged, remember that and return None.

        Raises:
            OSError: the file is not there, or its storage fails: it may be read later.
        """
        try:
            return read(path)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self[path] = str(error).splitlines()[0] if str(error) else type(error).__name__
            return None


def ledger_files(paths: Iterable[Path], gaps: Gaps) -> list[LedgerFile]:
    """Read the footers of files of consumed rows; those without rows are left out."""
    place = CONSUMED_SCHEMA.get_field_index("step")
    files = []
    for path in sorted(paths):
        footer = gaps.read(path, pq.read_metadata)
        groups = [] if footer is None else [footer.row_group(i) for i in range(footer.num_row_groups)]
        steps = [group.column(place).statistics for group in groups if group.num_rows]
        if footer is not None and steps:
            first, last = min(step.min for step in steps), max(step.max for step in steps)
            files.append(LedgerFile(path, attempt_in(path.name), first, last, footer.num_rows))
    return files


def attempt_in(name: str) -> int:
    """Return the attempt that wrote the file ``name``."""
    return int(name.split("-a")[1][:4])


def rows_of(
    files: Sequence[LedgerFile],
    attempt: int,
    start: int,
    stop: int,
    gaps: Gaps,
    columns: list[str] | None = None,
) -> pa.Table:
    """Read the rows of steps ``start`` to ``stop`` (exclusive) that ``attempt`` wrote.

    Args:
        columns: default: all.
    """
    names = columns or CONSUMED_SCHEMA.names
    tables = [pa.schema([CONSUMED_SCHEMA.field(name) for name in names]).empty_table()]
    for file in files:
        if file.attempt == attempt and file.first < stop and file.last >= start:
            table = gaps.read(file.path, lambda path: _read(path, names))
            if table is not None:
                steps = table["step"]
                inside = pc.and_(pc.greater_equal(steps, start), pc.less(steps, stop))
                whole = file.first >= start and file.last < stop
                tables.append(table if whole else table.filter(inside))
    return pa.concat_tables(tables)


def _read(path: Path, columns: list[str]) -> pa.Table:
    return pq.read_table(path, columns=columns, schema=CONSUMED_SCHEMA, partitioning=None)


def sort_rows(rows: pa.Table) -> pa.Table:
    """Return the rows sorted by position, in one piece of memory."""
    return rows.sort_by([("position", "ascending"), ("step", "ascending")]).combine_chunks()


def write_window(rows: pa.Table, path: Path) -> list[str]:
    """Write rows in row groups of :data:`BLOCK`; return the digest of each.

    Raises:
        OSError: the file cannot be written.
    """
    with written_aside(path, sync=True) as aside:
        options: dict[str, Any] = {"use_dictionary": ["attempt", "rank"], "column_encoding": _PACKED}
        pq.write_table(rows, aside, row_group_size=BLOCK, compression="none", **options)
    return [digest(rows.slice(start, BLOCK)) for start in range(0, len(rows), BLOCK)]


def read_block(path: Path, number: int) -> pa.Table:
    """Read position, id and step of one row group of a window's file."""
    with pq.ParquetFile(path) as file:
        return file.read_row_group(number, columns=COMPARED)


def digest(rows: pa.Table) -> str:
    """Return the BLAKE2b digest (16 bytes, hex) of positions, ids and steps, each as int64 in this machine's order."""
    columns = [rows[name].to_numpy().astype(np.int64, copy=False).tobytes() for name in COMPARED]
    return hashlib.blake2b(b"".join(columns), digest_size=16).hexdigest()
