"""The shard index: one row an image, in arrays; the row number is the sample id."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radioplat.data.files import FileState, stat_file
from radioplat.data.tarscan import SCAN_SCHEMA
from radioplat.errors import DataError

VERSION = "1"

SAMPLE_SCHEMA = pa.schema([("source", pa.int32()), ("shard", pa.int32()), *SCAN_SCHEMA, ("label", pa.int64())])
SHARD_SCHEMA = pa.schema(
    [
        ("source", pa.int32()),
        ("kind", pa.string()),  # tar or image
        ("root", pa.large_string()),  # absolute
        ("name", pa.large_string()),  # below root
        ("size", pa.int64()),  # bytes
        ("mtime_ns", pa.int64()),
    ]
)
FAULT_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("shard", "key", "reason", "detail")])


class ShardIndex:
    """Every usable image of a split.

    Rows are ordered by source, shard name and offset; the row number is the ``sample_id``. Numeric columns are read as
    numpy arrays (``source, shard, offset, length, width, height, label``, each ``[N]``; label -1 where there is none);
    the text columns stay in the Arrow table.

    Attributes:
        samples: table of ``SAMPLE_SCHEMA``.
        shards: table of ``SHARD_SCHEMA``; ``shard`` of a sample is its row here.
        faults: table of ``FAULT_SCHEMA``: what could not be used, and why.
        classes: names of the labels that came as text, by label.
        directory: where it was loaded from or saved to; None before.
    """

    def __init__(
        self, samples: pa.Table, shards: pa.Table, faults: pa.Table, classes: list[str], directory: Path | None = None
    ) -> None:
        self.samples = samples.select(SAMPLE_SCHEMA.names).cast(SAMPLE_SCHEMA).combine_chunks()
        self.shards = shards.select(SHARD_SCHEMA.names).cast(SHARD_SCHEMA).combine_chunks()
        self.faults = faults.select(FAULT_SCHEMA.names).cast(FAULT_SCHEMA).combine_chunks()
        self.classes = classes
        self.directory = directory

    def __len__(self) -> int:
        return self.samples.num_rows

    def __getstate__(self) -> dict:
        # The numpy columns are views of the table; pickled, they would travel twice.
        return {k: self.__dict__[k] for k in ("samples", "shards", "faults", "classes", "directory")}

    @cached_property
    def source(self) -> np.ndarray:
        """int32 ``[N]``, place of the source in the spec."""
        return self._column("source")

    @cached_property
    def shard(self) -> np.ndarray:
        """int32 ``[N]``, row of :attr:`shards`."""
        return self._column("shard")

    @cached_property
    def offset(self) -> np.ndarray:
        """int64 ``[N]``, bytes from the start of the shard."""
        return self._column("offset")

    @cached_property
    def length(self) -> np.ndarray:
        """int64 ``[N]``, bytes."""
        return self._column("length")

    @cached_property
    def width(self) -> np.ndarray:
        """int32 ``[N]``, pixels, upright."""
        return self._column("width")

    @cached_property
    def height(self) -> np.ndarray:
        """int32 ``[N]``, pixels, upright."""
        return self._column("height")

    @cached_property
    def label(self) -> np.ndarray:
        """int64 ``[N]``, -1 where there is none."""
        return self._column("label")

    @cached_property
    def shard_paths(self) -> list[str]:
        """Absolute path of each shard."""
        roots, names = self.shards["root"].to_pylist(), self.shards["name"].to_pylist()
        return [f"{root}/{name}" for root, name in zip(roots, names, strict=True)]

    def key(self, row: int) -> str:
        """Name of a sample inside its shard."""
        return self.samples["key"][int(row)].as_py()

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
        for table, names in (
            (self.shards, ("source", "name", "size")),
            (self.samples, ("source", "shard", "offset", "length", "width", "height", "key", "hash")),
        ):
            for name in names:
                digest.update(f"|{name}:{table.num_rows}|".encode())
                for part in _canonical(table[name]):
                    digest.update(part)
        return digest.hexdigest()

    def save(self, directory: str | Path) -> None:
        """Write ``samples.parquet``, ``shards.parquet``, ``faults.parquet`` and ``classes.json``.

        Each is written aside and renamed; all carry one id, so that a torn set is noticed on load.

        Raises:
            DataError: the folder cannot be written.
        """
        directory = Path(directory)
        build = uuid.uuid4().hex
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name in ("faults", "shards", "samples"):
                table = getattr(self, name).replace_schema_metadata({"radioplat_index": VERSION, "build": build})
                aside = directory / f".{name}.{build}"
                pq.write_table(table, aside)
                os.replace(aside, directory / f"{name}.parquet")
            aside = directory / f".classes.{build}"
            aside.write_text(json.dumps(self.classes, ensure_ascii=False, indent=1), encoding="utf-8")
            os.replace(aside, directory / "classes.json")
        except OSError as error:
            raise DataError(f"the index cannot be written: {error.strerror}", where=str(directory)) from None
        self.directory = directory

    @classmethod
    def load(cls, directory: str | Path) -> ShardIndex:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: a file is missing, damaged, of another version, or of another build than the rest.
        """
        directory = Path(directory)
        try:
            tables = {n: pq.read_table(directory / f"{n}.parquet") for n in ("samples", "shards", "faults")}
            classes = json.loads((directory / "classes.json").read_text(encoding="utf-8"))
            metadata = [table.schema.metadata or {} for table in tables.values()]
            marks = {(m.get(b"radioplat_index"), m.get(b"build")) for m in metadata}
            if len(marks) != 1 or next(iter(marks))[0] != VERSION.encode():
                raise ValueError("its files are of different builds or another version")
            return cls(tables["samples"], tables["shards"], tables["faults"], classes, directory)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            message = f"no usable index here: {' '.join(str(error).split())}"
            raise DataError(message, where=str(directory), hint="Run `radioplat index`.") from None

    def _column(self, name: str) -> np.ndarray:
        return self.samples[name].to_numpy()


def gone(path: str, error: OSError) -> DataError:
    """The error for a shard that cannot be opened any more."""
    return DataError(f"shard changed since it was indexed: {error.strerror}", where=path, hint="Restore the file.")


def _canonical(column: pa.ChunkedArray) -> list[memoryview | bytes]:
    """The same bytes for the same values, however Arrow has cut or padded them."""
    if pa.types.is_integer(column.type):
        values = column.to_numpy()
        return [memoryview(np.ascontiguousarray(values, values.dtype.newbyteorder("<"))).cast("B")]
    lengths = pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), -1).to_numpy()
    parts: list[memoryview | bytes] = [memoryview(np.ascontiguousarray(lengths, "<i8")).cast("B")]
    for chunk in column.chunks:
        chunk = pa.concat_arrays([chunk.fill_null("")])  # a fresh array: offset 0, no bytes behind nulls
        data = chunk.buffers()[2]
        if data is not None and len(chunk):
            bounds = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            parts.append(memoryview(data)[int(bounds[0]) : int(bounds[-1])])
    return parts
