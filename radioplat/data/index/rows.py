"""Read rows of an index by number from its parts; recently read blocks are cached."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from radioplat.data.index.columns import Column
from radioplat.data.index.parquet_parts import BLOCK_ROWS, PartReader
from radioplat.data.scan.tables import SCAN_SCHEMA
from radioplat.errors import DataError

CACHED_BLOCKS = 192  # of BLOCK_ROWS rows: about 75 MB where all are in use
_NUMBERS = ["offset", "length", "width", "height", "label", "caption_offset", "caption_length"]


class IndexRows:
    """The rows of a table of shards.

    Args:
        shards: a table with the columns of :data:`radioplat.data.index.parquet_parts.NOTE_SCHEMA`.
        directory: of the parts.
        classes: names of labels, by label.

    Attributes:
        starts: int64 ``[shards + 1]``, the first row of each shard.
    """

    def __init__(self, shards: pa.Table, directory: Path, classes: list[str]) -> None:
        self._shards, self._directory, self._classes = shards, directory, classes
        self.starts = np.concatenate([[0], np.cumsum(shards["rows"].to_numpy())]).astype(np.int64)
        self._parts = PartReader(directory)
        self._block = lru_cache(maxsize=CACHED_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, start: int, stop: int, columns: list[str]) -> pa.Table:
        """Read rows ``start`` to ``stop`` (exclusive): columns of ``SCAN_SCHEMA``, or ``label``.

        Raises:
            DataError: a file of the index is missing or damaged.
        """
        wanted = [c for c in columns if c != "label"]
        wanted += [c for c in ("given_label", "label_name") if "label" in columns and c not in wanted]
        tables = [self._part_rows(*piece, wanted) for piece in self.pieces(start, stop)]
        table = pa.concat_tables(tables or [SCAN_SCHEMA.empty_table().select(wanted)])
        if "label" in columns:
            table = table.append_column("label", self._labels(table))
        return table.select(columns)

    def blocks(self, columns: list[str], rows: int = 1 << 18) -> Iterator[tuple[int, pa.Table]]:
        """Yield the whole index as tables of at most ``rows`` rows, each with the number of its first row."""
        for start in range(0, len(self), rows):
            yield start, self.read(start, min(start + rows, len(self)), columns)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield the location of rows ``start`` to ``stop``, in order: part, its first and last (exclusive) row."""
        if stop <= start:
            return
        part, place, names = self._places
        first, last = self.shard_of(np.array([start, stop - 1])).tolist()
        shards = np.arange(first, last + 1)
        shards = shards[self._counts[shards] > 0]
        begin = place[shards] + np.maximum(start - self.starts[shards], 0)
        end = place[shards] + np.minimum(stop - self.starts[shards], self._counts[shards])
        joined = (part[shards[1:]] == part[shards[:-1]]) & (begin[1:] == end[:-1])
        heads, tails = np.flatnonzero(np.append(True, ~joined)), np.flatnonzero(np.append(~joined, True))
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
            yield names[part[shards[head]]], int(begin[head]), int(end[tail])

    def part_length(self, part: str) -> int:
        """Return the number of rows of a part, including shards that are no longer in the index."""
        with self._readable():
            return self._parts.length(part)

    def shard_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the shard of each row, int32 ``[n]``."""
        return (np.searchsorted(self.starts, rows, side="right") - 1).astype(np.int32)

    def per_shard(self, values: np.ndarray) -> Column:
        """Create a column with one value for all rows of a shard."""
        return Column(
            len(self), values.dtype, lambda rows: values[self.shard_of(rows)], lambda: np.repeat(values, self._counts)
        )

    def column(self, name: str, dtype: type) -> Column:
        """Create a numeric column by name."""

        def whole() -> np.ndarray:
            values: list[np.ndarray] = [np.asarray(table[name].to_numpy(), dtype) for _, table in self.blocks([name])]
            return np.concatenate([np.empty(0, dtype), *values])

        return Column(len(self), dtype, lambda rows: self._take(name, rows), whole)

    @cached_property
    def _counts(self) -> np.ndarray:
        return np.diff(self.starts)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """The part number of each shard, its first row in that part, and the names of the parts."""
        parts = self._shards["part"].combine_chunks().dictionary_encode()
        return parts.indices.to_numpy(), self._shards["part_row"].to_numpy(), parts.dictionary.to_pylist()

    def _part_rows(self, part: str, start: int, stop: int, columns: list[str]) -> pa.Table:
        with self._readable():
            return self._parts.read(part, start, stop, columns)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            message = f"the index is damaged: {' '.join(str(error).split())}"
            raise DataError(message, where=str(self._directory), hint="Run `radioplat index`.") from None

    def _labels(self, table: pa.Table) -> pa.ChunkedArray:
        """Return labels: the sidecar's number, else the index of its name among the classes, else -1."""
        given = table["given_label"]
        place = pc.index_in(table["label_name"], pa.array(self._classes, pa.large_string()), skip_nulls=True)
        return pc.if_else(pc.less(given, 0), pc.fill_null(pc.cast(place, pa.int64()), -1), given)

    def _take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Read values of single rows through the block cache; consecutive samples are in few shards."""
        blocks, places = np.divmod(rows, BLOCK_ROWS)
        if len(rows) == 1:
            return self._block(int(blocks[0]))[name][places]
        values = np.empty(len(rows), np.int32 if name in ("width", "height") else np.int64)
        for block in np.unique(blocks):
            mine = blocks == block
            values[mine] = self._block(int(block))[name][places[mine]]
        return values

    def _read_block(self, number: int) -> dict[str, np.ndarray]:
        start = number * BLOCK_ROWS
        table = self.read(start, min(start + BLOCK_ROWS, len(self)), _NUMBERS)
        return {name: table[name].to_numpy() for name in _NUMBERS}
