"""The shard index: one row an image, on disk, read a block at a time; the row number is the sample id."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radioplat.data.columns import Column
from radioplat.data.files import FileState, stat_file
from radioplat.data.parts import BLOCK_ROWS, NOTE_SCHEMA, PartReader, remove_notes, write_table
from radioplat.data.scan import canonical
from radioplat.data.tarscan import FAULT_SCHEMA, SCAN_SCHEMA
from radioplat.errors import DataError

VERSION = "2"
CACHED_BLOCKS = 256  # of at most BLOCK_ROWS rows: about 70 MB where all are in use
_NUMBERS = ["offset", "length", "width", "height", "label"]

SAMPLE_SCHEMA = pa.schema([("source", pa.int32()), ("shard", pa.int32()), *SCAN_SCHEMA, ("label", pa.int64())])
SHARD_SCHEMA = pa.schema([("source", pa.int32()), *NOTE_SCHEMA])


class ShardIndex:
    """Every usable image of a split.

    Rows are ordered by source, shard name and offset; the row number is the ``sample_id``. Numeric columns
    (``source, shard, offset, length, width, height, label``, each ``[N]``; label -1 where there is none) look like
    numpy arrays and are read where they are looked at, so an index of any size opens at once.

    Attributes:
        shards: table of ``SHARD_SCHEMA``; ``shard`` of a sample is its row here.
        faults: table of ``FAULT_SCHEMA``: what could not be used, and why.
        classes: names of the labels that came as text, by label.
        directory: where it lies.
        starts: int64 ``[shards + 1]``, the first row of each shard.
    """

    def __init__(self, shards: pa.Table, faults: pa.Table, classes: list[str], directory: Path) -> None:
        self.shards = shards.select(SHARD_SCHEMA.names).cast(SHARD_SCHEMA).combine_chunks()
        self.faults = faults.select(FAULT_SCHEMA.names).cast(FAULT_SCHEMA).combine_chunks()
        self.classes = classes
        self.directory = Path(directory)
        self.starts = np.concatenate([[0], np.cumsum(self.shards["rows"].to_numpy())]).astype(np.int64)
        self._parts = PartReader(self.directory)
        self._block = lru_cache(maxsize=CACHED_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __reduce__(self):
        return (ShardIndex, (self.shards, self.faults, self.classes, self.directory))

    @cached_property
    def source(self) -> Column:
        """int32 ``[N]``, place of the source in the spec."""
        of_shard = self.shards["source"].to_numpy()
        return Column(
            len(self), np.int32, lambda rows: of_shard[self._shard_of(rows)], lambda: np.repeat(of_shard, self._counts)
        )

    @cached_property
    def shard(self) -> Column:
        """int32 ``[N]``, row of :attr:`shards`."""
        numbers = np.arange(self.shards.num_rows, dtype=np.int32)
        return Column(len(self), np.int32, self._shard_of, lambda: np.repeat(numbers, self._counts))

    @cached_property
    def offset(self) -> Column:
        """int64 ``[N]``, bytes from the start of the shard."""
        return self._column("offset", np.int64)

    @cached_property
    def length(self) -> Column:
        """int64 ``[N]``, bytes."""
        return self._column("length", np.int64)

    @cached_property
    def width(self) -> Column:
        """int32 ``[N]``, pixels, upright."""
        return self._column("width", np.int32)

    @cached_property
    def height(self) -> Column:
        """int32 ``[N]``, pixels, upright."""
        return self._column("height", np.int32)

    @cached_property
    def label(self) -> Column:
        """int64 ``[N]``, -1 where there is none."""
        return self._column("label", np.int64)

    @cached_property
    def shard_paths(self) -> list[str]:
        """Path of each shard: absolute, or ``s3://...``, ``gs://...``."""
        roots, names = self.shards["root"].to_pylist(), self.shards["name"].to_pylist()
        return [f"{root}/{name}" for root, name in zip(roots, names, strict=True)]

    @property
    def samples(self) -> pa.Table:
        """The whole index as one table of ``SAMPLE_SCHEMA``, in memory: for a look at a small one."""
        tables = [table for _, table in self.blocks([*SCAN_SCHEMA.names, "label"])]
        table = pa.concat_tables([SAMPLE_SCHEMA.empty_table().drop_columns(["source", "shard"]), *tables])
        table = table.add_column(0, "shard", pa.array(np.asarray(self.shard)))
        return table.add_column(0, "source", pa.array(np.asarray(self.source))).cast(SAMPLE_SCHEMA).combine_chunks()

    def shards_of(self, source: int) -> range:
        """Rows of :attr:`shards` that belong to ``source``; its samples are one stretch too."""
        sources = self.shards["source"].to_numpy()
        return range(int(np.searchsorted(sources, source)), int(np.searchsorted(sources, source, side="right")))

    def rows_of(self, source: int) -> range:
        """Sample ids of ``source``."""
        shards = self.shards_of(source)
        return range(int(self.starts[shards.start]), int(self.starts[shards.stop]))

    def key(self, row: int) -> str:
        """Name of a sample inside its shard."""
        return self.texts([row], "key")[0]

    def texts(self, rows: np.ndarray | list[int], column: str) -> list[str | None]:
        """``key``, ``hash``, ``format`` or ``label_name`` of ``rows``, in their order."""
        return [self.read(int(row), int(row) + 1, [column])[column][0].as_py() for row in rows]

    def read(self, start: int, stop: int, columns: list[str]) -> pa.Table:
        """Rows ``start`` to ``stop`` (exclusive): columns of ``SCAN_SCHEMA``, and ``label``.

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
        """The whole index in pieces of at most ``rows`` rows: the first row of each, and its table."""
        for start in range(0, len(self), rows):
            yield start, self.read(start, min(start + rows, len(self)), columns)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Where rows ``start`` to ``stop`` lie: name of a part, first and last (exclusive) row there; in order."""
        if stop <= start:
            return
        part, place, names = self._places
        first, last = self._shard_of(np.array([start, stop - 1])).tolist()
        shards = np.arange(first, last + 1)
        shards = shards[self._counts[shards] > 0]
        begin = place[shards] + np.maximum(start - self.starts[shards], 0)
        end = place[shards] + np.minimum(stop - self.starts[shards], self._counts[shards])
        joined = (part[shards[1:]] == part[shards[:-1]]) & (begin[1:] == end[:-1])
        heads, tails = np.flatnonzero(np.append(True, ~joined)), np.flatnonzero(np.append(~joined, True))
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
            yield names[part[shards[head]]], int(begin[head]), int(end[tail])

    def part_length(self, part: str) -> int:
        """Rows of a part, those of shards that are no longer in the index too."""
        with self._readable():
            return self._parts.length(part)

    def check_shard(self, shard: int, state: FileState) -> None:
        """Compare what a shard is now with what it was when it was indexed.

        Raises:
            DataError: size or modification time differ, so that offsets may point anywhere.
        """
        known = FileState(self.shards["size"][int(shard)].as_py(), self.shards["mtime_ns"][int(shard)].as_py())
        if state != known:
            what = "it was written to since"
            if state.size != known.size:
                what = f"{known.size} bytes then, {state.size} now"
            raise DataError(
                f"shard changed since it was indexed: {what}",
                where=self.shard_paths[shard],
                hint="Restore the file, or index again and start with train.restart_order=true.",
            )

    def check_shards(self) -> None:
        """Check every shard by :meth:`check_shard`.

        Raises:
            DataError: with a problem for each shard that changed or is gone.
        """
        problems = []
        for shard, path in enumerate(self.shard_paths):
            try:
                self.check_shard(shard, stat_file(path))
            except DataError as error:
                problems.extend(error.problems)
            except OSError as error:
                problems.extend(gone(path, error).problems)
        if problems:
            raise DataError(*problems)

    def fingerprint(self) -> str:
        """sha256 (hex) of what the order depends on: shard names below their roots, sizes, and the rows.

        Where the shards lie, and when they were written or copied, does not enter.
        """
        digest = hashlib.sha256(f"radioplat index {VERSION}".encode())
        for name in ("source", "name", "size", "rows", "digest"):
            digest.update(f"|{name}:{self.shards.num_rows}|".encode())
            for part in canonical(self.shards[name].cast(pa.large_string()) if name == "digest" else self.shards[name]):
                digest.update(part)
        return digest.hexdigest()

    def save(self, directory: str | Path) -> None:
        """Write the index into ``directory``: its parts (linked where they can be), then the files that name them.

        Each is written aside and renamed; all carry one id, so that a torn set is noticed on load.

        Raises:
            DataError: the folder cannot be written.
        """
        directory, build = Path(directory), uuid.uuid4().hex
        try:
            directory.mkdir(parents=True, exist_ok=True)
            before = _parts_of(directory)
            parts = set(self.shards["part"].to_pylist())
            for part in parts:
                for path in self.directory.glob(f"{part}.*"):
                    if path.suffix in (".parquet", ".hashes"):
                        _link(path, directory / path.name)
            for name in ("faults", "shards"):
                table = getattr(self, name).replace_schema_metadata({"radioplat_index": VERSION, "build": build})
                write_table(table, directory / f"{name}.parquet")
            aside = directory / f".classes.{build}"
            aside.write_text(json.dumps(self.classes, ensure_ascii=False, indent=1), encoding="utf-8")
            os.replace(aside, directory / "classes.json")
            remove_notes(directory, parts | before)  # whoever has the index before this one open may go on reading it
        except OSError as error:
            raise DataError(f"the index cannot be written: {error.strerror}", where=str(directory)) from None

    @classmethod
    def load(cls, directory: str | Path) -> ShardIndex:
        """Open what :meth:`save` wrote.

        Raises:
            DataError: a file is missing, damaged, of another version, or of another build than the rest.
        """
        directory = Path(directory)
        try:
            tables = {n: pq.read_table(directory / f"{n}.parquet") for n in ("shards", "faults")}
            classes = json.loads((directory / "classes.json").read_text(encoding="utf-8"))
            metadata = [table.schema.metadata or {} for table in tables.values()]
            marks = {(m.get(b"radioplat_index"), m.get(b"build")) for m in metadata}
            if len(marks) != 1 or next(iter(marks))[0] != VERSION.encode():
                raise ValueError("its files are of different builds or another version")
            index = cls(tables["shards"], tables["faults"], classes, directory)
            for part in pc.unique(index.shards["part"]).to_pylist():
                if not (directory / f"{part}.parquet").exists():
                    raise ValueError(f"{part}.parquet is missing")
            return index
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            message = f"no usable index here: {' '.join(str(error).split())}"
            raise DataError(message, where=str(directory), hint="Run `radioplat index`.") from None

    @cached_property
    def _counts(self) -> np.ndarray:
        return np.diff(self.starts)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Of each shard: the number of its part and its first row there; and the names of the parts."""
        parts = self.shards["part"].combine_chunks().dictionary_encode()
        return parts.indices.to_numpy(), self.shards["part_row"].to_numpy(), parts.dictionary.to_pylist()

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        return (np.searchsorted(self.starts, rows, side="right") - 1).astype(np.int32)

    def _part_rows(self, part: str, start: int, stop: int, columns: list[str]) -> pa.Table:
        with self._readable():
            return self._parts.read(part, start, stop, columns)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            message = f"the index is damaged: {' '.join(str(error).split())}"
            raise DataError(message, where=str(self.directory), hint="Run `radioplat index`.") from None

    def _labels(self, table: pa.Table) -> pa.ChunkedArray:
        """A number that a sidecar gives is the label; a name is the number it has among the classes, -1 if none."""
        given = table["given_label"]
        place = pc.index_in(table["label_name"], pa.array(self.classes, pa.large_string()), skip_nulls=True)
        return pc.if_else(pc.less(given, 0), pc.fill_null(pc.cast(place, pa.int64()), -1), given)

    def _column(self, name: str, dtype: type) -> Column:
        def whole() -> np.ndarray:
            values = [np.asarray(table[name].to_numpy(), dtype) for _, table in self.blocks([name])]
            return np.concatenate([np.empty(0, dtype), *values])

        return Column(len(self), dtype, lambda rows: self._take(name, rows), whole)

    def _take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Values of single rows, by way of cached blocks: neighbours in the order share a few shards."""
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


def gone(path: str, error: OSError) -> DataError:
    """The error for a shard that cannot be opened any more."""
    return DataError(f"shard changed since it was indexed: {error.strerror}", where=path, hint="Restore the file.")


def _parts_of(directory: Path) -> set[str]:
    """Parts that the index in ``directory`` names, if there is one."""
    try:
        return set(pq.read_table(directory / "shards.parquet", columns=["part"])["part"].to_pylist())
    except (OSError, pa.ArrowException, KeyError):
        return set()


def _link(path: Path, to: Path) -> None:
    """Parts are never written again, so a link is as good as a copy."""
    if to.exists() and to.samefile(path):
        return
    aside = to.with_name(f".{to.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, aside)
    os.replace(aside, to)
