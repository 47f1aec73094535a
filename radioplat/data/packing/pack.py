"""``radioplat pack``: write image files as balanced WebDataset shards with sidecars, split into train and val."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from webdataset import TarWriter

from radioplat.common.atomic_files import written_aside
from radioplat.data.packing.inputs import Entry, ExaminedFile, examine, list_entries
from radioplat.errors import DataError, SpecError

VERSION = 1  # increase it when the same input should give other shards
SPLITS = ("train", "val")
_NOTES = ".pack"


@dataclass
class PackOptions:
    """``key=value`` of ``radioplat pack``."""

    samples_per_shard: int = 1000
    val_fraction: float = 0.05  # of the images of each class
    seed: int = 42
    verify: bool = True  # decode every image, not only its header
    workers: int = 0  # threads; 0: the machine's cores


@dataclass(frozen=True)
class Packed:
    """Result of a packing.

    Attributes:
        images, shards, image_bytes: by split.
        classes: names, by label.
        duplicates: images with the content of an earlier one; they are packed, into the same split.
        bad: images that could not be packed, by reason; ``rejected.csv`` lists each.
        kept: shards that an interrupted run had finished.
    """

    folder: Path
    images: dict[str, int]
    shards: dict[str, int]
    image_bytes: dict[str, int]
    classes: list[str]
    duplicates: int
    bad: dict[str, int]
    kept: int


def pack_options(overrides: Sequence[str]) -> PackOptions:
    """Parse ``key=value`` options.

    Raises:
        SpecError: an option is unknown or its value is out of range.
    """
    hint = f"Options: {', '.join(f'{k}={v}' for k, v in asdict(PackOptions()).items())}."
    try:
        merged = OmegaConf.merge(OmegaConf.structured(PackOptions), OmegaConf.from_dotlist(list(overrides)))
        options = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise SpecError(str(error).splitlines()[0], where=" ".join(overrides), hint=hint) from None
    assert isinstance(options, PackOptions)
    for name, valid in (
        ("samples_per_shard", options.samples_per_shard >= 1),
        ("val_fraction", 0 <= options.val_fraction < 1),
        ("workers", options.workers >= 0),
    ):
        if not valid:
            raise SpecError(f"{getattr(options, name)} is out of range", where=name, hint=hint)
    return options


def pack(
    source: str | Path,
    out: str | Path,
    options: PackOptions | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Packed:
    """Pack a folder of images, or those that a CSV names, into ``out/train`` and ``out/val``.

    The same input and options give the same bytes. An interrupted run is resumed: examined files are not read again,
    finished shards stay.

    Args:
        source: see :func:`radioplat.data.packing.inputs.list_entries`.
        progress: called with (phase, images done, images in all).

    Raises:
        DataError: there is nothing to pack, ``out`` cannot be created or contains shards of another packing, or a file
            changes meanwhile.
    """
    out, options = Path(out), options or PackOptions()
    entries = list_entries(source)
    try:
        (out / _NOTES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "Name a folder that can be written."
        raise DataError(f"cannot create the folder {out}: {error.strerror}", where="out", hint=hint) from None
    workers = options.workers or os.cpu_count() or 1
    report = progress or (lambda phase, done, total: None)
    notes = out / _NOTES / ("decoded.jsonl" if options.verify else "headers.jsonl")
    examined = examine(entries, notes, options.verify, workers, lambda *n: report("examine", *n))
    good = [(entry, file) for entry, file in zip(entries, examined, strict=True) if not file.reason]
    _write_rejected(out / "rejected.csv", examined)
    if not good:
        raise DataError("none of the images can be packed", where=str(source), hint=f"See {out / 'rejected.csv'}.")
    classes = sorted({entry.label for entry, _ in good if entry.label})
    plan = _plan(good, options)
    _claim(out, _digest(good, options), plan)
    kept = _write(out, good, plan, classes, lambda *n: report("write", *n))
    _write_json(out / "classes.json", classes)
    of_split = {split: [i for name, rows in plan.items() if name.startswith(split) for i in rows] for split in SPLITS}
    return Packed(
        out,
        {split: len(rows) for split, rows in of_split.items()},
        {split: sum(name.startswith(split) for name in plan) for split in SPLITS},
        {split: sum(good[i][1].size for i in rows) for split, rows in of_split.items()},
        classes,
        len(good) - len({file.sha256 for _, file in good}),
        dict(Counter(file.reason for file in examined if file.reason).most_common()),
        kept,
    )


Good = list[tuple[Entry, ExaminedFile]]


def _plan(good: Good, options: PackOptions) -> dict[str, list[int]]:
    """Assign rows of ``good`` to shards: rows by name, ``train/train-000000.tar`` and so on."""
    val = _held_out(good, options)
    plan: dict[str, list[int]] = {}
    for split in SPLITS:
        rows = [i for i, (_, file) in enumerate(good) if (file.sha256 in val) == (split == "val")]
        for number, shard in enumerate(_distribute(good, rows, options)):
            plan[f"{split}/{split}-{number:06d}.tar"] = shard
    return plan


def _held_out(good: Good, options: PackOptions) -> set[str]:
    """Draw the sha256 of the images of val: ``options.val_fraction`` of each class, independent of file names.

    All copies of a content belong to the class of the first one, so that they are in the same split.
    """
    by_class: dict[str, list[str]] = defaultdict(list)
    for digest, label in {file.sha256: entry.label for entry, file in reversed(good)}.items():
        by_class[label].append(digest)
    val: set[str] = set()
    for digests in by_class.values():
        drawn = sorted(digests, key=lambda digest: _key(options.seed, "split", digest))
        val.update(drawn[: round(options.val_fraction * len(drawn))])
    return val


def _distribute(good: Good, rows: list[int], options: PackOptions) -> list[list[int]]:
    """Split rows into shards of equal count, nearly equal bytes, and the same share of every class."""
    count = -(-len(rows) // options.samples_per_shard)
    rows = sorted(rows, key=lambda i: (good[i][0].label, -good[i][1].size, good[i][0].path))
    shards: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for start in range(0, len(rows), max(1, count)):
        # One row for each shard, the largest for the shard with the fewest bytes.
        dealt = sorted(rows[start : start + count], key=lambda i: -good[i][1].size)
        for shard, row in zip(sorted(range(count), key=sizes.__getitem__), dealt, strict=False):
            shards[shard].append(row)
            sizes[shard] += good[row][1].size
    rng = np.random.default_rng([options.seed, len(rows)])
    return [[shard[i] for i in rng.permutation(len(shard))] for shard in shards]


def _key(seed: int, purpose: str, text: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{purpose}/{text}".encode(), digest_size=8).digest()


def _digest(good: Good, options: PackOptions) -> str:
    """Hash everything that determines the shards: the images and the options."""
    digest = hashlib.sha256(
        json.dumps([VERSION, options.samples_per_shard, options.val_fraction, options.seed]).encode()
    )
    for entry, file in good:
        digest.update(json.dumps([entry.label, entry.caption, file.sha256, file.extension]).encode())
    return digest.hexdigest()


def _claim(out: Path, digest: str, plan: dict[str, list[int]]) -> None:
    """Record in ``out`` which packing its shards belong to.

    Raises:
        DataError: it contains shards of another packing.
    """
    note = out / _NOTES / "plan.json"
    known = json.loads(note.read_text()) if note.exists() else None
    if known != digest and (shards := [p for split in SPLITS for p in (out / split).glob("*.tar")]):
        raise DataError(
            f"this folder contains {len(shards)} shards of another packing: the images or the options differ",
            where=str(out),
            hint="Choose another folder, or delete this one.",
        )
    _write_json(note, digest)
    for name in plan:
        (out / name).parent.mkdir(exist_ok=True)


def _write(
    out: Path, good: Good, plan: dict[str, list[int]], classes: list[str], progress: Callable[[int, int], None]
) -> int:
    """Write missing shards (an existing one is complete); return the number of existing ones."""
    done = kept = 0
    labels = {name: number for number, name in enumerate(classes)}
    for name, rows in plan.items():
        path = out / name
        if path.exists():
            kept += 1
        else:
            with written_aside(path) as aside, TarWriter(str(aside), encoder=False, mtime=0) as tar:
                for row in rows:
                    tar.write(_sample(row, *good[row], labels))
        done += len(rows)
        progress(done, len(good))
    return kept


def _sample(row: int, entry: Entry, file: ExaminedFile, labels: dict[str, int]) -> dict[str, str | bytes]:
    data = Path(entry.path).read_bytes() if Path(entry.path).exists() else b""
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DataError("this image changed while it was packed", where=entry.path, hint="Run the same command again.")
    sidecar: dict[str, str | int] = {"sha256": file.sha256, "file": Path(entry.path).name}
    if entry.label:
        sidecar |= {"label": labels[entry.label], "label_name": entry.label}
    if entry.caption:
        sidecar["caption"] = entry.caption
    return {
        "__key__": f"{row:09d}",
        file.extension: data,
        "json": json.dumps(sidecar, ensure_ascii=False).encode(),
    }


def _write_rejected(path: Path, examined: Iterable[ExaminedFile]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "reason", "detail"])
        table.writerows([f.path, f.reason, f.detail] for f in examined if f.reason)


def _write_json(path: Path, value: object) -> None:
    with written_aside(path) as aside:
        aside.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
