"""Build the index of a split: scan what is new, keep what is known."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from radioplat.data.shard_index import FAULT_SCHEMA, SAMPLE_SCHEMA, SHARD_SCHEMA, ShardIndex
from radioplat.data.sources import SourceFiles, list_shards
from radioplat.data.tarscan import SCAN_SCHEMA, scan_image, scan_tar
from radioplat.errors import DataError, Problem
from radioplat.spec.dataset import SplitConfig

__all__ = ["ShardIndex", "build_index"]


class _Known:
    """What an earlier index says of files that have not changed since."""

    def __init__(self, index: ShardIndex) -> None:
        self._samples = index.samples.select(SCAN_SCHEMA.names)
        self._bounds = np.searchsorted(index.shard, np.arange(index.shards.num_rows + 1))
        self._shards = {}
        for i, (row, path) in enumerate(zip(index.shards.to_pylist(), index.shard_paths, strict=True)):
            self._shards[(row["kind"], path, row["name"], row["size"], row["mtime_ns"])] = i
        self._faults = index.faults
        self._fault_rows: dict[str, list[int]] = defaultdict(list)
        for i, path in enumerate(index.faults["shard"].to_pylist()):
            self._fault_rows[path].append(i)

    def find(self, key: tuple, path: str) -> tuple[pa.Table, pa.Table] | None:
        shard = self._shards.get(key)
        if shard is None:
            return None
        first, last = self._bounds[shard : shard + 2]
        return self._samples.slice(first, last - first), self._faults.take(pa.array(self._fault_rows[path], pa.int64()))


def build_index(
    split: SplitConfig,
    path: str,
    index_dir: str | Path,
    *,
    max_pixels: int,
    classes: list[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> ShardIndex:
    """Index a split and save it under ``index_dir``; unchanged shards (path, size, mtime) are not read again.

    Args:
        split: one split of the spec.
        path: its place in the spec, such as ``dataset.train_dataset``.
        index_dir: the folder of this split's index; one that holds no usable index is simply filled.
        max_pixels: a source none of whose images is at most this large counts as unusable.
        classes: the label names of the train split, for the other splits (a name that is not there gets label -1);
            None numbers the names of this split in sorted order.
        progress: called with (shards done, shards in all).
        workers: threads that scan; default: the machine's cores, at most 8.

    Raises:
        DataError: a folder is missing or empty, or a source holds no usable image.
    """
    sources = list_shards(split, path)
    try:
        known = _Known(ShardIndex.load(index_dir))
    except DataError:
        known = None
    jobs = [(number, source, file) for number, source in enumerate(sources) for file in source.files]
    tables, faults, done = [], [], 0

    def scan(job: tuple) -> tuple[pa.Table, pa.Table]:
        _, source, file = job
        full = f"{source.root}/{file.name}"
        found = known and known.find((source.kind, full, file.name, *file.state), full)
        if found:
            return found
        result = scan_tar(full) if source.kind == "tar" else scan_image(full, file.name)
        return result.rows, pa.Table.from_pylist([vars(fault) for fault in result.faults], schema=FAULT_SCHEMA)

    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        for shard, (rows, found) in enumerate(pool.map(scan, jobs)):
            place = [pa.array(np.full(len(rows), n, np.int32)) for n in (jobs[shard][0], shard)]
            tables.append(rows.add_column(0, "shard", place[1]).add_column(0, "source", place[0]))
            faults.append(found)
            done += 1
            if progress:
                progress(done, len(jobs))
    samples, names = _number_labels(pa.concat_tables(tables), classes)
    index = ShardIndex(samples, _shard_table(sources), pa.concat_tables(faults), names)
    _refuse_useless(index, sources, max_pixels)
    index.save(index_dir)
    return index


def _shard_table(sources: list[SourceFiles]) -> pa.Table:
    columns = [
        (number, source.kind, source.root, file.name, *file.state)
        for number, source in enumerate(sources)
        for file in source.files
    ]
    return pa.table([list(column) for column in zip(*columns, strict=True)], schema=SHARD_SCHEMA)


def _number_labels(samples: pa.Table, classes: list[str] | None) -> tuple[pa.Table, list[str]]:
    """A number that a sidecar gives is the label; names without a number are numbered in sorted order."""
    given, text = samples["given_label"], samples["label_name"]
    if classes is None:
        named = pc.filter(text, pc.and_(pc.less(given, 0), pc.is_valid(text)))
        classes = sorted(pc.unique(named).to_pylist())
    place = pc.index_in(text, pa.array(classes, pa.large_string()), skip_nulls=True)
    number = pc.fill_null(pc.cast(place, pa.int64()), -1)
    label = pc.if_else(pc.less(given, 0), number, given)
    return samples.append_column("label", label).cast(SAMPLE_SCHEMA), list(classes)


def _refuse_useless(index: ShardIndex, sources: list[SourceFiles], max_pixels: int) -> None:
    usable = index.width.astype(np.int64) * index.height <= max_pixels
    left = np.bincount(index.source[usable], minlength=len(sources))
    faults = index.faults.to_pylist()
    problems = []
    for number, source in enumerate(sources):
        if left[number]:
            continue
        first = next((f for f in faults if f["shard"].startswith(source.root + "/")), None)
        shown = " ".join(filter(None, (first["shard"], first["reason"], first["detail"]))) if first else "all too large"
        of = f"{len(source.files)} {'tar shards' if source.kind == 'tar' else 'image files'}"
        message = f"none of the {of} in {source.root} holds a usable image"
        problems.append(Problem(message, source.field, f"The first finding: {shown}."))
    if problems:
        raise DataError(*problems)
