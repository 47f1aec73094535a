"""Summarize a folder of shards or images, without a spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from radioplat.data.index.build import build_index
from radioplat.data.index.filters import REASONS, reject_codes
from radioplat.data.index.frequency import first_of_each
from radioplat.data.index.scratch import scratch
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.scan.scan import Scanner, scan_in_processes
from radioplat.data.scan.sources import contains_tars
from radioplat.errors import Problem, SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.paths import is_remote
from radioplat.spec.schema.root import Spec

SIDES = (0, 64, 128, 224, 384, 512, 768, 1024, 2048)
EXAMPLES = 3
_SECTIONS = frozenset(each.name for each in fields(Spec))
_READ = ("dataset.train_dataset", "dataset.max_pixels", "cluster.")
_HINT = "Fields of dataset.train_dataset (the prefix may be left out) and cluster, dataset.max_pixels and index_dir do."


@dataclass
class Survey:
    """Figures of one folder.

    Attributes:
        short_sides: histogram of the short side: number of images by the lower bound of the bin, pixels.
        duplicates: images whose hash equals an earlier image's, among those with a hash in their sidecar.
        hashed: images with a hash in their sidecar.
        rejected: number of images by the filter that rejects them.
        rejected_examples: the first few of each: shard, key and size.
        faults: number of unusable members by reason.
        fault_examples: the first few of each: shard, key and detail.
    """

    folder: str
    shards: int
    images: int
    image_bytes: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    labelled: int = 0
    classes: int = 0
    captions: int = 0
    short_sides: dict[int, int] = field(default_factory=dict)
    duplicates: int = 0
    hashed: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    rejected_examples: dict[str, list[str]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    fault_examples: dict[str, list[str]] = field(default_factory=dict)


def survey_spec(folder: str, overrides: Sequence[str]) -> tuple[Spec, Path]:
    """Return the spec of a survey, and the folder of its index.

    Args:
        folder: of tar shards, or else of images; local, ``s3://`` or ``gs://``.
        overrides: fields of ``dataset.train_dataset``, with or without this prefix, for example
            ``native_resolution_filter.min_short_side=224``; ``dataset.max_pixels``; fields of section ``cluster``, for
            example ``cluster.mode=ray``; ``index_dir=...``.

    Raises:
        SpecError: an override names no field, or one that changes no index.
    """
    folder = folder if is_remote(folder) else str(Path(folder).absolute())
    index_dir = next((o.partition("=")[2] for o in overrides if o.startswith("index_dir=")), None)
    overrides = [o for o in overrides if not o.startswith("index_dir=")]
    paths = [o if _section(o) in _SECTIONS else f"dataset.train_dataset.{o}" for o in overrides]
    source = {"tar_data_sources": [{"root_dir": folder}]} if contains_tars(folder) else {"images_dir": folder}
    default_name = folder.replace("://", "/").strip("/").replace("/", "_")
    where = Path(index_dir) if index_dir else Path("results/index") / default_name
    spec = load_spec({"dataset": {"train_dataset": source}}, paths)
    if idle := [path for o in paths if not (path := o.partition("=")[0].lstrip("+")).startswith(_READ)]:
        raise SpecError(*(Problem("this field changes no index", path, _HINT) for path in idle))
    return spec, where


def _section(override: str) -> str:
    return override.lstrip("+").partition("=")[0].partition(".")[0]


def survey(
    folder: str | Path,
    overrides: Sequence[str] = (),
    *,
    scan: Scanner = scan_in_processes,
    progress: Callable[[int, int], None] | None = None,
) -> Survey:
    """Index ``folder`` (tars below it, or else its images) and compute its figures.

    Args:
        overrides: see :func:`survey_spec`.
        scan: where the scan runs; default: processes of this machine.
        progress: called with (shards done, shards in all).

    Raises:
        DataError: the folder contains neither shards nor images.
    """
    spec, index_dir = survey_spec(str(folder), overrides)
    split, limit = spec.dataset.train_dataset, spec.dataset.max_pixels
    index = build_index(split, "index", index_dir, max_pixels=limit, progress=progress, scan=scan)
    result = Survey(str(folder), index.shards.num_rows, len(index))
    _count_images(index, reject_codes(index, split, limit), result)
    _count_faults(index, result)
    return result


def _count_images(index: ShardIndex, codes: np.ndarray, result: Survey) -> None:
    sides, classes = np.zeros(len(SIDES), np.int64), set()
    rejected = np.zeros(len(REASONS), np.int64)
    keys = scratch(len(index), np.int64, index.directory)
    columns = ["width", "height", "length", "format", "hash_key", "label", "caption_offset", "key"]
    for start, table in index.rows.blocks(columns):
        numbers = {name: table[name].to_numpy() for name in columns if name not in ("format", "key")}
        stop = start + len(table)
        result.image_bytes += int(numbers["length"].sum())
        short = np.minimum(numbers["width"], numbers["height"])
        sides += np.bincount(np.searchsorted(SIDES, short, side="right") - 1, minlength=len(SIDES))
        counts = table["format"].value_counts().to_pylist()
        result.formats.update({item["values"]: item["counts"] for item in counts})
        labels = numbers["label"][numbers["label"] >= 0]
        result.labelled += len(labels)
        classes.update(np.unique(labels).tolist())
        result.captions += int((numbers["caption_offset"] >= 0).sum())
        keys[start:stop] = numbers["hash_key"]
        rejected += np.bincount(codes[start:stop], minlength=len(REASONS))
        for code in np.unique(codes[start:stop][codes[start:stop] > 0]).tolist():
            examples = result.rejected_examples.setdefault(REASONS[code], [])
            for row in np.flatnonzero(codes[start:stop] == code)[: EXAMPLES - len(examples)].tolist():
                where = index.shard_paths[int(index.shard[start + row])]
                size = f"{numbers['width'][row]}x{numbers['height'][row]}"
                examples.append(f"{where} {table['key'][row].as_py()} {size}")
    result.classes = len(classes)
    result.short_sides = {side: int(count) for side, count in zip(SIDES, sides, strict=True) if count}
    result.rejected = {name: int(n) for name, n in zip(REASONS, rejected, strict=True) if name and n}
    result.hashed = int(np.count_nonzero(keys))
    result.duplicates = result.hashed - int(np.count_nonzero(first_of_each(keys, index.directory)))


def _count_faults(index: ShardIndex, result: Survey) -> None:
    for fault in index.faults.to_pylist():
        result.faults[fault["reason"]] += 1
        examples = result.fault_examples.setdefault(fault["reason"], [])
        if len(examples) < EXAMPLES:
            examples.append(" ".join(filter(None, (fault["shard"], fault["key"], fault["detail"]))))
