"""What is in a folder of shards or images, without any spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radioplat.data.index.build import build_index
from radioplat.data.index.filters import REASONS, reject_codes
from radioplat.data.index.frequency import first_of_each
from radioplat.data.index.scratch import scratch
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.scan.scan import Scanner, scan_in_processes
from radioplat.data.scan.sources import holds_tars
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.paths import is_remote
from radioplat.spec.schema.root import Spec

SIDES = (0, 64, 128, 224, 384, 512, 768, 1024, 2048)
EXAMPLES = 3


@dataclass
class Survey:
    """Figures of one folder.

    Attributes:
        short_sides: images by the lower bound of their bin of the short side, pixels.
        duplicates: images whose hash an earlier one has, among those that carry a hash in their sidecar.
        hashed: images that carry one.
        rejected: images by the filter that rejects them.
        rejected_examples: the first few of each: shard, key and size.
        faults: unusable members by reason.
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
    """The spec of a survey, and the folder of its index.

    Args:
        folder: of tar shards, or else of images; local, ``s3://`` or ``gs://``.
        overrides: ``native_resolution_filter.min_short_side=224`` and the like, as in ``dataset.train_dataset``;
            ``cluster.mode=ray`` and other fields of section ``cluster``; ``index_dir=...``.

    Raises:
        SpecError: an override names no field.
    """
    folder = folder if is_remote(folder) else str(Path(folder).absolute())
    index_dir = next((o.partition("=")[2] for o in overrides if o.startswith("index_dir=")), None)
    own = [o for o in overrides if not o.startswith("index_dir=")]
    named = [o if o.startswith("cluster.") else f"dataset.train_dataset.{o}" for o in own]
    source = {"tar_data_sources": [{"root_dir": folder}]} if holds_tars(folder) else {"images_dir": folder}
    own_name = folder.replace("://", "/").strip("/").replace("/", "_")
    where = Path(index_dir) if index_dir else Path("results/index") / own_name
    return load_spec({"dataset": {"train_dataset": source}}, named), where


def survey(
    folder: str | Path,
    overrides: Sequence[str] = (),
    *,
    scan: Scanner = scan_in_processes,
    progress: Callable[[int, int], None] | None = None,
) -> Survey:
    """Index ``folder`` (tars below it, or else its images) and sum it up.

    Args:
        overrides: see :func:`survey_spec`.
        scan: where the scan runs; default: processes of this machine.
        progress: called with (shards done, shards in all).

    Raises:
        DataError: the folder holds neither shards nor images.
    """
    spec, index_dir = survey_spec(str(folder), overrides)
    split, limit = spec.dataset.train_dataset, spec.dataset.max_pixels
    index = build_index(split, "index", index_dir, max_pixels=limit, progress=progress, scan=scan)
    found = Survey(str(folder), index.shards.num_rows, len(index))
    codes = reject_codes(index, split, limit)
    _look_through(index, codes, found)
    _count_faults(index, found)
    return found


def _look_through(index: ShardIndex, codes: np.ndarray, found: Survey) -> None:
    sides, classes = np.zeros(len(SIDES), np.int64), set()
    rejected = np.zeros(len(REASONS), np.int64)
    keys = scratch(len(index), np.int64, index.directory)
    columns = ["width", "height", "length", "format", "hash_key", "label", "caption_offset", "key"]
    for start, table in index.rows.blocks(columns):
        numbers = {name: table[name].to_numpy() for name in columns if name not in ("format", "key")}
        stop = start + len(table)
        found.image_bytes += int(numbers["length"].sum())
        short = np.minimum(numbers["width"], numbers["height"])
        sides += np.bincount(np.searchsorted(SIDES, short, side="right") - 1, minlength=len(SIDES))
        counts = table["format"].value_counts().to_pylist()
        found.formats.update({item["values"]: item["counts"] for item in counts})
        labels = numbers["label"][numbers["label"] >= 0]
        found.labelled += len(labels)
        classes.update(np.unique(labels).tolist())
        found.captions += int((numbers["caption_offset"] >= 0).sum())
        keys[start:stop] = numbers["hash_key"]
        rejected += np.bincount(codes[start:stop], minlength=len(REASONS))
        for code in np.unique(codes[start:stop][codes[start:stop] > 0]).tolist():
            examples = found.rejected_examples.setdefault(REASONS[code], [])
            for row in np.flatnonzero(codes[start:stop] == code)[: EXAMPLES - len(examples)].tolist():
                where = index.shard_paths[int(index.shard[start + row])]
                size = f"{numbers['width'][row]}x{numbers['height'][row]}"
                examples.append(f"{where} {table['key'][row].as_py()} {size}")
    found.classes = len(classes)
    found.short_sides = {side: int(count) for side, count in zip(SIDES, sides, strict=True) if count}
    found.rejected = {name: int(n) for name, n in zip(REASONS, rejected, strict=True) if name and n}
    found.hashed = int(np.count_nonzero(keys))
    found.duplicates = found.hashed - int(np.count_nonzero(first_of_each(keys, index.directory)))


def _count_faults(index: ShardIndex, found: Survey) -> None:
    for fault in index.faults.to_pylist():
        found.faults[fault["reason"]] += 1
        examples = found.fault_examples.setdefault(fault["reason"], [])
        if len(examples) < EXAMPLES:
            examples.append(" ".join(filter(None, (fault["shard"], fault["key"], fault["detail"]))))
