"""Rows of the index on disk: Parquet files that are written once, as a scan goes on, and read a block at a time.

A part holds the rows of whole shards, one after another. While a scan goes on each has a note beside it that says which
shards those are, so that a scan which was killed goes on where it was; the finished index knows it by itself.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.common.atomic_files import written_aside
from radioplat.data.scan.scan import empty_rows
from radioplat.data.scan.shard import FAULT_SCHEMA, SCAN_SCHEMA

BLOCK_ROWS = 8192
PART_ROWS = 250_000
PART_SECONDS = 5.0  # what a killed scan loses at most

# One row a shard: what it was when it was scanned, and where its rows are.
NOTE_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),  # tar or image
        ("root", pa.large_string()),  # absolute, or s3://..., gs://...
        ("name", pa.large_string()),  # below root
        ("size", pa.int64()),  # bytes
        ("mtime_ns", pa.int64()),
        ("rows", pa.int64()),
        ("digest", pa.string()),  # sha256 of the rows
        ("part", pa.string()),
        ("part_row", pa.int64()),  # its first row there
    ]
)


class PartWriter:
    """Collects what is scanned and puts it on disk, as parts of :data:`PART_ROWS` rows or :data:`PART_SECONDS`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reset()

    def add(self, notes: list[dict], rows: pa.Table, faults: pa.Table) -> None:
        """Take the rows of some shards.

        Args:
            notes: the columns of :data:`NOTE_SCHEMA` of each but ``part`` and ``part_row``.
            rows: of all of them, in their order.
        """
        for note in notes:
            self._notes.append(note | {"part": self._name, "part_row": self._count})
            self._count += note["rows"]
        self._tables.append(rows)
        self._faults.append(faults)
        if self._count >= PART_ROWS or time.monotonic() - self._began >= PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Put on disk what was taken."""
        if self._notes:
            rows = pa.concat_tables([empty_rows(), *self._tables])
            write_table(rows, self._directory / f"{self._name}.parquet", row_group_size=BLOCK_ROWS)
            faults = pa.concat_tables([FAULT_SCHEMA.empty_table(), *self._faults])
            write_table(faults, self._directory / f"{self._name}.faults")
            write_table(pa.Table.from_pylist(self._notes, schema=NOTE_SCHEMA), self._directory / f"{self._name}.shards")
        self._reset()

    def _reset(self) -> None:
        self._name = f"part-{uuid.uuid4().hex}"
        self._notes: list[dict] = []
        self._tables: list[pa.Table] = []
        self._faults: list[pa.Table] = []
        self._count, self._began = 0, time.monotonic()


def unfinished(directory: Path) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Notes and faults of each part that a scan left whole but no index knows yet."""
    for path in sorted(directory.glob("part-*.shards")):
        try:
            if path.with_suffix(".parquet").exists():
                yield pq.read_table(path, schema=NOTE_SCHEMA), pq.read_table(path.with_suffix(".faults"))
        except (OSError, pa.ArrowException):
            continue  # a note that was torn by a full disk or a lost machine is worth no more than none


def remove_notes(directory: Path, keep: set[str]) -> None:
    """After an index was written: drop the notes, and every part that is not in ``keep``."""
    for path in directory.glob("part-*"):
        name = path.name.partition(".")[0]
        if name not in keep or path.suffix in (".shards", ".faults"):
            path.unlink(missing_ok=True)


class PartReader:
    """Reads rows of the parts in a folder; thread-safe, pickles by its folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._file = lru_cache(maxsize=64)(self._open)

    def read(self, part: str, start: int, stop: int, columns: list[str]) -> pa.Table:
        """Rows ``start`` to ``stop`` (exclusive) of ``part``.

        Raises:
            OSError, pyarrow.ArrowException: the part is missing or damaged.
        """
        if stop <= start:
            return SCAN_SCHEMA.empty_table().select(columns)
        with self._lock:
            file = self._file(part)
            size = max(1, file.metadata.row_group(0).num_rows)  # all but the last are of one size
            groups = list(range(start // size, (stop - 1) // size + 1))
            table = file.read_row_groups(groups, columns=columns, use_threads=False)
        return table.slice(start - groups[0] * size, stop - start)

    def length(self, part: str) -> int:
        """Rows of ``part``.

        Raises:
            OSError, pyarrow.ArrowException: as :meth:`read`.
        """
        with self._lock:
            return self._file(part).metadata.num_rows

    def _open(self, part: str) -> pq.ParquetFile:
        return pq.ParquetFile(self.directory / f"{part}.parquet", memory_map=True)

    def __reduce__(self):
        return (PartReader, (self.directory,))


def write_table(table: pa.Table, path: Path, row_group_size: int | None = None) -> None:
    """Written aside and renamed: a file with its name is whole."""
    with written_aside(path) as aside:
        pq.write_table(table, aside, row_group_size=row_group_size, compression="zstd", write_statistics=False)
