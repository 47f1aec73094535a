"""Rows of the index on disk: Parquet files ("parts"), written once during a scan and read in blocks.

A part contains the rows of complete shards, one after another. During a scan each part has a note file that lists its
shards, from which an interrupted scan resumes; the finished index lists them itself.
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
from radioplat.data.scan.shard import NAME_RULES
from radioplat.data.scan.tables import FAULT_SCHEMA, SCAN_SCHEMA

BLOCK_ROWS = 8192
PART_ROWS = 250_000
PART_SECONDS = 5.0  # an interrupted scan loses at most this much work

# One row a shard: its state when it was scanned, and the location of its rows.
NOTE_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),  # tar, tar EXTENSION (image_extension), or image
        ("root", pa.large_string()),  # absolute, or s3://..., gs://...
        ("name", pa.large_string()),  # below root
        ("size", pa.int64()),  # bytes
        ("mtime_ns", pa.int64()),
        ("rows", pa.int64()),
        ("digest", pa.string()),  # sha256 of the rows
        ("part", pa.string()),
        ("part_row", pa.int64()),  # its first row in the part
    ]
)


class PartWriter:
    """Collect scan results and write a part every :data:`PART_ROWS` rows or :data:`PART_SECONDS` seconds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reset()

    def add(self, notes: list[dict], rows: pa.Table, faults: pa.Table) -> None:
        """Add the rows of some shards.

        Args:
            notes: for each shard the columns of :data:`NOTE_SCHEMA` except ``part`` and ``part_row``.
            rows: of all these shards, in their order.
            faults: of all these shards.
        """
        for note in notes:
            self._notes.append(note | {"part": self._name, "part_row": self._count})
            self._count += note["rows"]
        self._tables.append(rows)
        self._faults.append(faults)
        if self._count >= PART_ROWS or time.monotonic() - self._began >= PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows."""
        if self._notes:
            rows = pa.concat_tables([SCAN_SCHEMA.empty_table(), *self._tables])
            write_table(rows, self._directory / f"{self._name}.parquet", row_group_size=BLOCK_ROWS)
            faults = pa.concat_tables([FAULT_SCHEMA.empty_table(), *self._faults])
            faults = faults.replace_schema_metadata({"name_rules": NAME_RULES})
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
    """Yield notes and faults of each complete part of an interrupted scan, in the order in which they were written."""
    for path in sorted(directory.glob("part-*.shards"), key=lambda path: path.stat().st_mtime_ns):
        try:
            if path.with_suffix(".parquet").exists():
                yield pq.read_table(path, schema=NOTE_SCHEMA), pq.read_table(path.with_suffix(".faults"))
        except (OSError, pa.ArrowException):
            continue  # a note damaged by a full disk or a crash is ignored


def remove_notes(directory: Path, keep: set[str]) -> None:
    """Delete all notes, and every part not in ``keep``, after an index was written."""
    for path in directory.glob("part-*"):
        name = path.name.partition(".")[0]
        if name not in keep or path.suffix in (".shards", ".faults"):
            path.unlink(missing_ok=True)


class PartReader:
    """Read rows of the parts in a folder; thread-safe; only the folder is pickled."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._file = lru_cache(maxsize=64)(self._open)

    def read(self, part: str, start: int, stop: int, columns: list[str]) -> pa.Table:
        """Read rows ``start`` to ``stop`` (exclusive) of ``part``.

        Raises:
            OSError, pyarrow.ArrowException: the part is missing or damaged.
        """
        if stop <= start:
            return SCAN_SCHEMA.empty_table().select(columns)
        with self._lock:
            file = self._file(part)
            size = max(1, file.metadata.row_group(0).num_rows)  # all groups but the last have this size
            groups = list(range(start // size, (stop - 1) // size + 1))
            table = file.read_row_groups(groups, columns=columns, use_threads=False)
        return table.slice(start - groups[0] * size, stop - start)

    def length(self, part: str) -> int:
        """Return the number of rows of ``part``.

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
    """Write a Parquet file atomically: a file with this name is always complete."""
    with written_aside(path) as aside:
        pq.write_table(table, aside, row_group_size=row_group_size, compression="zstd", write_statistics=False)
