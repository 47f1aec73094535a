"""Build the index of a split: scan new files, reuse known ones, and resume an interrupted scan."""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from radioplat.data.index.parquet_parts import NOTE_SCHEMA, PartWriter, unfinished
from radioplat.data.index.scan_wait import Patience, ScanWait
from radioplat.data.index.shard_index import SHARD_SCHEMA, ShardIndex, check_index
from radioplat.data.scan.scan import IMAGES_PER_BATCH, ScanBatch, Scanner, scan_here
from radioplat.data.scan.shard import NAME_RULES
from radioplat.data.scan.sources import ShardFile, SourceFiles, list_shards
from radioplat.data.scan.tables import FAULT_SCHEMA, UNREADABLE
from radioplat.errors import DataError, Problem
from radioplat.spec.schema.dataset import SplitConfig
from radioplat.tracking.record_versions import prepare_folder

__all__ = ["ShardIndex", "build_index"]

_BUILDING = threading.Lock()
_Key = tuple[str, str, str, int, int]  # kind (and image_extension, if set), root, name, size, mtime_ns


def build_index(
    split: SplitConfig,
    path: str,
    index_dir: str | Path,
    *,
    max_pixels: int,
    classes: list[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    scan: Scanner | None = None,
    patience: Patience | None = None,
) -> ShardIndex:
    """Index a split and save it under ``index_dir``.

    Unchanged shards (path, size, mtime) are not read again, except those that could not be read, and tars that a
    release with other rules of names has read. Without ``patience``, what cannot be read is left out. The scan writes
    its results as it proceeds: after a crash it resumes, except for its last seconds. Of two processes that build in
    one folder the second waits and reuses the result.

    Args:
        split: one split of the spec.
        path: its field path, for example ``dataset.train_dataset``.
        index_dir: the folder of this split's index.
        max_pixels: a source without an image of at most this size is unusable.
        classes: the label names of the train split, for the other splits (an unknown name gets label -1); None
            numbers the names of this split in sorted order.
        progress: called with (shards done, shards in all).
        workers: threads that scan; default: the machine's cores, at most 8.
        scan: where the scan runs; default: threads of this process.
        patience: how long to try again to read what storage does not give.

    Raises:
        DataError: a folder is missing or empty, a source holds no usable image, or ``index_dir`` cannot be written.
        NewerRecord: ``index_dir`` contains an index, or parts of one, of a newer version; it stays as it is.
        StorageError: storage failed for longer than ``patience``.
    """
    sources = list_shards(split, path)
    index_dir = Path(index_dir)
    with _locked(index_dir), ScanWait(sources, patience) as wait:
        check_index(index_dir)
        prepare_folder(index_dir, ("index_parts",))
        known = _Known(index_dir)
        while (fresh := list(_batches(sources, known))) and wait.may_read(fresh, known.answer):
            shards, writer = _ShardList(sources), PartWriter(index_dir)
            total = sum(len(source.files) for source in sources)
            done = total - sum(len(batch.names) for batch in fresh)
            for result in (scan or (lambda batches: scan_here(batches, workers)))(fresh):
                writer.add(shards.notes(result.batch, result.counts, result.digests), result.rows, result.faults)
                done += len(result.batch.names)
                if progress:
                    progress(done, total)
            writer.flush()
            known = _Known(index_dir)
        index = known.index_of(sources, index_dir, classes)
        _require_usable_sources(index, sources, max_pixels)
        index.save(index_dir)
    return index


class _Known:
    """Scanned files in ``index_dir``: those of an earlier index and of interrupted scans."""

    def __init__(self, index_dir: Path) -> None:
        scans = []
        with contextlib.suppress(DataError):  # there is none yet, or a torn one, which is built anew
            before = ShardIndex.load(index_dir)
            scans.append((before.shards.select(NOTE_SCHEMA.names), before.faults))
        scans += unfinished(index_dir)
        scans = [(_by_present_rules(notes, faults), faults) for notes, faults in scans]
        self._notes = pa.concat_tables([NOTE_SCHEMA.empty_table(), *(notes for notes, _ in scans)])
        self._faults = [faults for _, faults in scans]
        self._origin = np.repeat(np.arange(len(scans)), [len(notes) for notes, _ in scans])  # scan of each note
        columns = [self._notes[name].to_pylist() for name in ("kind", "root", "name", "size", "mtime_ns")]
        self._row: dict[_Key, int] = {key: row for row, key in enumerate(zip(*columns, strict=True))}
        # By the scan and the path; an earlier scan may have failed where a later one has not.
        self._answers: dict[tuple[int, str], str] = {}
        for number, table in enumerate(self._faults):
            unreadable = table.filter(pc.equal(table["reason"], UNREADABLE))
            for path, answer in zip(*(unreadable[name].to_pylist() for name in ("shard", "detail")), strict=True):
                self._answers[number, path] = answer

    def __contains__(self, key: _Key) -> bool:
        row = self._row.get(key)
        return row is not None and (int(self._origin[row]), f"{key[1]}/{key[2]}") not in self._answers

    def answer(self, path: str) -> str:
        """Return what the storage answered when a file could not be read, the last time."""
        numbers = [number for number, of in self._answers if of == path]
        return self._answers[max(numbers), path] if numbers else ""

    def index_of(self, sources: list[SourceFiles], index_dir: Path, classes: list[str] | None) -> ShardIndex:
        """Create the index over ``sources``, all of whose files are known."""
        rows, source = [], []
        for number, files in enumerate(sources):
            rows += [self._row[key] for key in _keys(files)]
            source += [number] * len(files.files)
        shards = self._notes.take(pa.array(rows, pa.int64()))
        shards = shards.add_column(0, "source", pa.array(source, pa.int32())).select(SHARD_SCHEMA.names)
        index = ShardIndex(shards, self._faults_of(shards, self._origin[rows]), classes or [], index_dir)
        if classes is None:
            index = ShardIndex(shards, index.faults, _class_names(index), index_dir)
        return index

    def _faults_of(self, shards: pa.Table, origin: np.ndarray) -> pa.Table:
        """Select faults in the order of the shards, each from the scan that its rows come from, not an older one."""
        by_path: dict[tuple[int, str], list[int]] = defaultdict(list)
        faults = pa.concat_tables([FAULT_SCHEMA.empty_table(), *self._faults])
        origins = np.repeat(np.arange(len(self._faults)), [len(table) for table in self._faults]).tolist()
        for row, key in enumerate(zip(origins, faults["shard"].to_pylist(), strict=True)):
            by_path[key].append(row)
        wanted = zip(origin.tolist(), shards["root"].to_pylist(), shards["name"].to_pylist(), strict=True)
        rows = [row for number, root, name in wanted for row in by_path.get((number, f"{root}/{name}"), ())]
        return faults.take(pa.array(rows, pa.int64()))


def _by_present_rules(notes: pa.Table, faults: pa.Table) -> pa.Table:
    """Return the notes of a scan without those of tars that were read by other rules of names."""
    if (faults.schema.metadata or {}).get(b"name_rules") == NAME_RULES.encode():
        return notes
    return notes.filter(pc.equal(notes["kind"], "image"))


class _ShardList:
    """Keys of the files in the order of the index."""

    def __init__(self, sources: list[SourceFiles]) -> None:
        self._keys = [key for files in sources for key in _keys(files)]

    def notes(self, batch: ScanBatch, counts: list[int], digests: list[str]) -> list[dict]:
        """Return one row of ``NOTE_SCHEMA`` for each file of a scanned batch."""
        keys = self._keys[batch.first : batch.first + len(batch.names)]
        return [
            dict(zip(("kind", "root", "name", "size", "mtime_ns"), key, strict=True)) | {"rows": rows, "digest": digest}
            for key, rows, digest in zip(keys, counts, digests, strict=True)
        ]


def _keys(source: SourceFiles) -> Iterator[_Key]:
    kind = f"{source.kind} {source.image_extension}" if source.image_extension else source.kind
    for file in source.files:
        yield kind, source.root, file.name, *file.state


def _batches(sources: list[SourceFiles], known: _Known) -> Iterator[ScanBatch]:
    """Yield batches of files still to scan, in the order of the index; a batch contains consecutive files."""
    first = 0
    for source in sources:
        limit = 1 if source.kind == "tar" else IMAGES_PER_BATCH
        pending: list[ShardFile] = []
        for number, (file, key) in enumerate(zip(source.files, _keys(source), strict=True), start=first):
            if pending and (key in known or len(pending) == limit):
                yield _batch(number - len(pending), source, pending)
                pending = []
            if key not in known:
                pending.append(file)
        first += len(source.files)
        if pending:
            yield _batch(first - len(pending), source, pending)


def _batch(first: int, source: SourceFiles, files: list[ShardFile]) -> ScanBatch:
    names, size = tuple(file.name for file in files), sum(file.state.size for file in files)
    return ScanBatch(first, source.kind, source.root, names, size, source.image_extension)


@contextmanager
def _locked(index_dir: Path) -> Iterator[None]:
    """Lock the folder against other processes that build an index in it."""
    try:
        index_dir.mkdir(parents=True, exist_ok=True)
        # `lockf`, because `flock` does not reach other machines on every NFS; it does not keep out threads.
        with _BUILDING, open(index_dir / ".lock", "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DataError(f"the index cannot be written: {error.strerror}", where=str(index_dir)) from None


def _class_names(index: ShardIndex) -> list[str]:
    """Return the sorted label names of rows without a numeric label."""
    names: set[str] = set()
    for _, table in index.rows.blocks(["given_label", "label_name"]):
        text = table["label_name"]
        named = pc.filter(text, pc.and_(pc.less(table["given_label"], 0), pc.is_valid(text)))
        names.update(pc.unique(named).to_pylist())
    return sorted(names)


def _require_usable_sources(index: ShardIndex, sources: list[SourceFiles], max_pixels: int) -> None:
    faults = None
    problems = []
    for number, source in enumerate(sources):
        if _any_usable(index, index.rows_of(number), max_pixels):
            continue
        faults = index.faults.to_pylist() if faults is None else faults
        first = next((f for f in faults if f["shard"].startswith(source.root + "/")), None)
        shown = " ".join(filter(None, (first["shard"], first["reason"], first["detail"]))) if first else "all too large"
        of = f"{len(source.files)} {'tar shards' if source.kind == 'tar' else 'image files'}"
        message = f"none of the {of} in {source.root} contains a usable image"
        problems.append(Problem(message, source.field, f"The first fault: {shown}."))
    if problems:
        raise DataError(*problems)


def _any_usable(index: ShardIndex, rows: range, max_pixels: int) -> bool:
    step = 1 << 14
    for start in range(rows.start, rows.stop, step):
        table = index.rows.read(start, min(start + step, rows.stop), ["width", "height"])
        if (table["width"].to_numpy().astype(np.int64) * table["height"].to_numpy() <= max_pixels).any():
            return True
    return False
