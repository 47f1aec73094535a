"""Ledger of consumed and rejected samples: Parquet files in the run's folder, compared with the order after the run.

Sample ids come from the batches that reached backward, never from the sample order that they are compared with.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.common.atomic_files import sync_folder, written_aside
from radioplat.data.batch import Batch
from radioplat.data.index.columns import Column
from radioplat.data.index.shard_index import ShardIndex

CONSUMED_SCHEMA = pa.schema(
    [
        ("attempt", pa.int32()),
        ("step", pa.int64()),  # global step
        ("rank", pa.int32()),
        ("position", pa.int64()),
        ("id", pa.int64()),
        ("checksum", pa.int64()),  # crc32 of the sample's pixels in the first view
    ]
)
REJECTED_SCHEMA = pa.schema([*list(CONSUMED_SCHEMA)[:-1], ("reason", pa.large_string())])
REJECTS_SCHEMA = pa.schema(
    [("id", pa.int64()), *((name, pa.large_string()) for name in ("shard", "key", "reason", "detail"))]
)
_FLUSH_ROWS = 100_000
_Rows = tuple[int, int, np.ndarray, np.ndarray, np.ndarray]  # step, rank, positions, ids, checksums or reasons


class Ledger:
    """Writer of the samples that one rank consumed and rejected during one attempt; rows are on disk after `flush`.

    Args:
        directory: of the run's ledger; created if missing.
        rank: of this worker, also part of the file names.
        attempt: number of the start of the run's worker group.
    """

    def __init__(self, directory: str | Path, rank: int, attempt: int) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._rank, self._attempt = rank, attempt
        self._consumed: list[_Rows] = []
        self._rejected: list[_Rows] = []
        self._rows = 0
        self._files, self._mark = 0, uuid.uuid4().hex[:8]

    def record(self, step: int, batch: Batch) -> None:
        """Record a batch that reached backward at global step ``step``, and its samples of weight 0 as rejected.

        Padding is ignored.
        """
        if batch.micro_batch < 0:
            return
        self.consumed(step, self._rank, batch.position, batch.sample_id, batch.checksums)
        bad = np.flatnonzero(batch.weight == 0)
        if len(bad):
            reasons = [batch.faults.get(int(i), "") for i in batch.sample_id[bad]]
            self.rejected(step, self._rank, batch.position[bad], batch.sample_id[bad], reasons)

    def consumed(self, step: int, rank: int, positions: np.ndarray, ids: np.ndarray, checksum: np.ndarray) -> None:
        """Record samples that reached backward at global step ``step``; all arrays ``[B]``."""
        self._add(self._consumed, step, rank, positions, ids, checksum)

    def rejected(self, step: int, rank: int, positions: np.ndarray, ids: np.ndarray, reasons: Sequence[str]) -> None:
        """Record samples that proved unusable at run time, with the reason for each."""
        self._add(self._rejected, step, rank, positions, ids, reasons)

    def flush(self) -> None:
        """Write all rows to disk; call it before a checkpoint is committed."""
        wrote = bool(self._consumed or self._rejected)
        kinds = (("consumed", self._consumed, CONSUMED_SCHEMA), ("rejected", self._rejected, REJECTED_SCHEMA))
        for kind, parts, schema in kinds:
            if parts:
                _write(self._table(parts, schema), self._new_path(kind))
                parts.clear()
        self._rows = 0
        if wrote:
            sync_folder(self._directory)

    def _table(self, parts: list[_Rows], schema: pa.Schema) -> pa.Table:
        counts = [len(positions) for _, _, positions, *_ in parts]
        steps, ranks, *columns = zip(*parts, strict=True)
        fixed = [np.full(sum(counts), self._attempt), np.repeat(steps, counts), np.repeat(ranks, counts)]
        arrays = [pa.array(c, f.type) for c, f in zip([*fixed, *map(np.concatenate, columns)], schema, strict=True)]
        return pa.table(arrays, schema=schema)

    def _add(
        self,
        parts: list[_Rows],
        step: int,
        rank: int,
        positions: np.ndarray,
        ids: np.ndarray,
        last: Sequence[str] | np.ndarray,
    ) -> None:
        """Keep rows until the next flush, where they become a table: the training thread calls this."""
        last = last if isinstance(last, np.ndarray) else np.array(last, dtype=object)
        # Copies: the arrays may be parts of blocks that contain images.
        parts.append((step, rank, positions.copy(), ids.copy(), last.copy()))
        self._rows += len(positions)
        if self._rows >= _FLUSH_ROWS:
            with contextlib.suppress(OSError):  # on a full disk the rows are kept, and the next checkpoint raises
                self.flush()

    def _new_path(self, kind: str) -> Path:
        self._files += 1
        # A restarted worker of the same attempt writes other names, also after its files were moved into windows.
        name = f"{kind}-a{self._attempt:04d}-r{self._rank:05d}-{self._mark}-{self._files:06d}.parquet"
        return self._directory / name


def write_rejects(directory: str | Path, index: ShardIndex, reasons: np.ndarray | Column) -> None:
    """Write ``rejects.parquet``: each row of the index that a filter rejected, and each fault of the scan, once.

    Args:
        directory: of the run's ledger; created if missing.
        index: of ``N`` rows.
        reasons: ``[N]`` of str, ``""`` for a kept row; any sequence whose slices are arrays.
    """
    faults = index.faults
    Path(directory).mkdir(parents=True, exist_ok=True)
    path = Path(directory) / "rejects.parquet"
    paths = np.array(index.shard_paths, object)
    with written_aside(path) as aside, pq.ParquetWriter(aside, REJECTS_SCHEMA) as writer:
        for start, table in index.rows.blocks(["key", "width", "height"]):
            here = np.asarray(reasons[start : start + len(table)])
            rows = np.flatnonzero(here != "")
            if not len(rows):
                continue
            table = table.take(pa.array(rows))
            size = [f"{w}x{h}" for w, h in zip(table["width"].to_pylist(), table["height"].to_pylist(), strict=True)]
            writer.write_table(
                _rejects([rows + start, paths[index.shard[rows + start]], table["key"], here[rows], size])
            )
        writer.write_table(_rejects([np.full(len(faults), -1), *(faults[n] for n in REJECTS_SCHEMA.names[1:])]))


def _rejects(columns: list) -> pa.Table:
    arrays = [c if isinstance(c, pa.ChunkedArray) else pa.array(c, f.type)
              for c, f in zip(columns, REJECTS_SCHEMA, strict=True)]  # fmt: skip
    return pa.table(arrays, schema=REJECTS_SCHEMA)


def read_rejected(directory: str | Path) -> pa.Table:
    """Read all samples that proved unusable at run time, each once, by attempt and step."""
    rows = read_rows(directory, "rejected", REJECTED_SCHEMA)
    order = [(name, "ascending") for name in ("attempt", "step", "position")]
    return rows.group_by(rows.column_names).aggregate([]).select(rows.column_names).sort_by(order)


def read_rows(directory: str | Path, kind: str, schema: pa.Schema) -> pa.Table:
    """Read the rows of all files of one kind, ``consumed`` or ``rejected``."""
    files = sorted(Path(directory).glob(f"{kind}-a*.parquet"))
    return pa.concat_tables([pq.read_table(f, schema=schema) for f in files]) if files else schema.empty_table()


def _write(table: pa.Table, path: Path) -> None:
    with written_aside(path, sync=True) as aside:
        pq.write_table(table, aside)
