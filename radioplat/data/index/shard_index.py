"""The shard index: one row for each image, stored on disk and read in blocks; the row number is the sample id."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radioplat.common.atomic_files import written_aside
from radioplat.data.index.columns import Column
from radioplat.data.index.parquet_parts import NOTE_SCHEMA, remove_notes, write_table
from radioplat.data.index.rows import IndexRows
from radioplat.data.scan.scan import canonical
from radioplat.data.scan.shard import NAME_RULES
from radioplat.data.scan.tables import FAULT_SCHEMA
from radioplat.data.storage.files import FileState
from radioplat.errors import DataError
from radioplat.tracking.record_versions import check_newer, newer_record, prepare_folder, read_versions

VERSION = "2"
SCHEMA_KEY, _RULES_KEY = b"radioplat_index", b"name_rules"  # of VERSION and NAME_RULES, in the files' metadata

SHARD_SCHEMA = pa.schema([("source", pa.int32()), *NOTE_SCHEMA])


class ShardIndex:
    """Every usable image of a split.

    Rows are ordered by source, shard name and offset; the row number is the ``sample_id``. Numeric columns
    (``source, shard, offset, length, width, height, label``, each ``[N]``; label -1 if unlabelled) behave like
    numpy arrays and read from disk on access, so an index of any size opens immediately.

    Attributes:
        shards: table of ``SHARD_SCHEMA``; ``shard`` of a sample is a row of it.
        faults: table of ``FAULT_SCHEMA``: unusable members and the reasons.
        classes: names of the labels that were given as text, by label.
        directory: the folder of the index.
        rows: reader of rows and columns.
        starts: int64 ``[shards + 1]``, the first row of each shard.
    """

    def __init__(self, shards: pa.Table, faults: pa.Table, classes: list[str], directory: Path) -> None:
        self.shards = shards.select(SHARD_SCHEMA.names).cast(SHARD_SCHEMA).combine_chunks()
        fault_schema = FAULT_SCHEMA.with_metadata(faults.schema.metadata)
        self.faults = faults.select(FAULT_SCHEMA.names).cast(fault_schema).combine_chunks()
        self.classes = classes
        self.directory = Path(directory)
        self.rows = IndexRows(self.shards, self.directory, classes)
        self.starts = self.rows.starts

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __reduce__(self):
        return (ShardIndex, (self.shards, self.faults, self.classes, self.directory))

    @cached_property
    def source(self) -> Column:
        """int32 ``[N]``, number of the source in the spec."""
        return self.rows.per_shard(self.shards["source"].to_numpy())

    @cached_property
    def shard(self) -> Column:
        """int32 ``[N]``, row of :attr:`shards`."""
        return self.rows.per_shard(np.arange(self.shards.num_rows, dtype=np.int32))

    @cached_property
    def offset(self) -> Column:
        """int64 ``[N]``, bytes from the start of the shard."""
        return self.rows.column("offset", np.int64)

    @cached_property
    def length(self) -> Column:
        """int64 ``[N]``, bytes."""
        return self.rows.column("length", np.int64)

    @cached_property
    def width(self) -> Column:
        """int32 ``[N]``, pixels, upright."""
        return self.rows.column("width", np.int32)

    @cached_property
    def height(self) -> Column:
        """int32 ``[N]``, pixels, upright."""
        return self.rows.column("height", np.int32)

    @cached_property
    def label(self) -> Column:
        """int64 ``[N]``, -1 where there is none."""
        return self.rows.column("label", np.int64)

    @cached_property
    def caption_offset(self) -> Column:
        """int64 ``[N]``, offset in the shard of the JSON sidecar with the caption; -1 if there is none."""
        return self.rows.column("caption_offset", np.int64)

    @cached_property
    def caption_length(self) -> Column:
        """int64 ``[N]``, bytes of that JSON sidecar."""
        return self.rows.column("caption_length", np.int64)

    @cached_property
    def shard_paths(self) -> list[str]:
        """Path of each shard: absolute, or ``s3://...``, ``gs://...``."""
        roots, names = self.shards["root"].to_pylist(), self.shards["name"].to_pylist()
        return [f"{root}/{name}" for root, name in zip(roots, names, strict=True)]

    def shards_of(self, source: int) -> range:
        """Return the rows of :attr:`shards` that belong to ``source``; its samples are consecutive too."""
        sources = self.shards["source"].to_numpy()
        return range(int(np.searchsorted(sources, source)), int(np.searchsorted(sources, source, side="right")))

    def rows_of(self, source: int) -> range:
        """Return the sample ids of ``source``."""
        shards = self.shards_of(source)
        return range(int(self.starts[shards.start]), int(self.starts[shards.stop]))

    def key(self, row: int) -> str:
        """Return the name of a sample inside its shard."""
        key = self.texts([row], "key")[0]
        assert key is not None
        return key

    def texts(self, rows: np.ndarray | list[int], column: str) -> list[str | None]:
        """Return ``key``, ``hash``, ``format`` or ``label_name`` of ``rows``, in their order."""
        return [self.rows.read(int(row), int(row) + 1, [column])[column][0].as_py() for row in rows]

    def check_shard(self, shard: int, state: FileState) -> None:
        """Compare a shard's present state with its state when it was indexed.

        Raises:
            DataError: size or modification time differ, so offsets are no longer reliable.
        """
        known = FileState(self.shards["size"][int(shard)].as_py(), self.shards["mtime_ns"][int(shard)].as_py())
        if state != known:
            resized = state.size != known.size
            change = f"{known.size} bytes then, {state.size} now" if resized else "it was written to since"
            raise DataError(
                f"shard changed since it was indexed: {change}",
                where=self.shard_paths[shard],
                hint="Restore the file, or index again and start with train.restart_order=true.",
            )

    def fingerprint(self) -> str:
        """Return the sha256 (hex) of all that the sample order depends on: shard names, sizes, and rows.

        The folders of the shards and their modification times are not part of it.
        """
        digest = hashlib.sha256(f"radioplat index {VERSION}".encode())
        for name in ("source", "name", "size", "rows", "digest"):
            digest.update(f"|{name}:{self.shards.num_rows}|".encode())
            for part in canonical(self.shards[name].cast(pa.large_string()) if name == "digest" else self.shards[name]):
                digest.update(part)
        return digest.hexdigest()

    def save(self, directory: str | Path) -> None:
        """Write the index into ``directory``: its parts (hard links if possible), then the files that list them.

        Each file is written atomically; all contain one build id, so that a mixture of builds is detected on load.

        Raises:
            DataError: the folder cannot be written.
            NewerRecord: it contains an index of a newer version, which stays as it is.
        """
        check_index(directory)
        directory, build = Path(directory), uuid.uuid4().hex
        try:
            directory.mkdir(parents=True, exist_ok=True)
            prepare_folder(directory, ("index_parts",))
            before = _parts_of(directory)
            parts = set(self.shards["part"].to_pylist())
            for part in parts:
                for path in self.directory.glob(f"{part}.*"):
                    if path.suffix in (".parquet", ".hashes"):
                        _link(path, directory / path.name)
            for name in ("faults", "shards"):
                marks = {"radioplat_index": VERSION, "build": build, "name_rules": NAME_RULES}
                table = getattr(self, name).replace_schema_metadata(marks)
                write_table(table, directory / f"{name}.parquet")
            with written_aside(directory / "classes.json") as aside:
                aside.write_text(json.dumps(self.classes, ensure_ascii=False, indent=1), encoding="utf-8")
            remove_notes(directory, parts | before)  # a process that has the earlier index open still reads its parts
        except OSError as error:
            raise DataError(f"the index cannot be written: {error.strerror}", where=str(directory)) from None

    @classmethod
    def load(cls, directory: str | Path) -> ShardIndex:
        """Open an index that :meth:`save` wrote.

        Raises:
            DataError: a file is missing, damaged, of an older version, or of another build than the rest.
            NewerRecord: a newer version wrote it.
        """
        directory = Path(directory)
        check_index(directory)
        try:
            tables = {n: pq.read_table(directory / f"{n}.parquet") for n in ("shards", "faults")}
            classes = json.loads((directory / "classes.json").read_text(encoding="utf-8"))
            metadata = [table.schema.metadata or {} for table in tables.values()]
            marks = {(m.get(SCHEMA_KEY), m.get(b"build")) for m in metadata}
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


def check_index(directory: str | Path) -> None:
    """Check that no file of the index in ``directory`` is of a newer version; a folder without an index passes.

    Raises:
        NewerRecord: one is; it names the version that wrote it.
    """
    directory = Path(directory)
    check_newer(directory)
    for name in ("shards", "faults"):
        path = directory / f"{name}.parquet"
        try:
            marks = pq.read_schema(path).metadata or {}
        except (OSError, pa.ArrowException):
            continue  # missing or damaged
        for key, ours in ((SCHEMA_KEY, VERSION), (_RULES_KEY, NAME_RULES)):
            theirs = marks.get(key, b"").decode(errors="replace")
            if theirs.isdecimal() and int(theirs) > int(ours):
                raise newer_record(str(path), f"field {key.decode()}", theirs, ours, read_versions(directory).radioplat)


def missing_shard(path: str, error: OSError) -> DataError:
    """Create the error for a shard that can no longer be opened."""
    return DataError(f"shard changed since it was indexed: {error.strerror}", where=path, hint="Restore the file.")


def _parts_of(directory: Path) -> set[str]:
    """Return the parts of the index in ``directory``, if there is one."""
    try:
        return set(pq.read_table(directory / "shards.parquet", columns=["part"])["part"].to_pylist())
    except (OSError, pa.ArrowException, KeyError):
        return set()


def _link(path: Path, to: Path) -> None:
    """Hard-link or copy a part; parts are never modified, so that a link is safe."""
    if to.exists() and to.samefile(path):
        return
    with written_aside(to) as aside:
        aside.unlink(missing_ok=True)
        try:
            os.link(path, aside)
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, aside)
