"""Corpora for `python -m benchmarks.teach` and its judge: made from Debian's packages, never shipped.

``python -m benchmarks.teach.corpora [--folder results/teach/corpora] [--crops 12000] [--scenes 240] [--bank 12]
[--queries 20] [--garments 2500] [--composites 600] [--seed 1] [--debs DIR] [--sheets]``. Packages gnome-backgrounds,
mate-backgrounds, plasma-workspace-wallpapers and dataset-fashion-mnist come by ``apt-get download`` (no root, nothing
is installed), or from ``.deb`` files in ``--debs``. The folder then has:

- ``train/train-*.tar``: WebDataset shards of JPEG crops without labels, for the student;
- ``scenes.npz``: crops of other cells of the same pictures, label: the scene (`benchmarks/teach/pictures.py`), and as
  a coarser one, ``bank.pictures`` and ``queries.pictures``, the picture (``picture_names``);
- ``fashion.npz``: Fashion-MNIST at 96 pixels, ten classes;
- ``composites.npz``: garments on pieces of the held-out cells, at 192 pixels, with masks, for dense probes;
- ``manifest.json``: versions, counts, seed, and sha256 of each file.

An ``.npz`` has ``bank.images`` and ``queries.images`` uint8 ``[N, H, W, 3]``, ``bank.labels`` and ``queries.labels``
(``masks`` ``[N, H, W]`` where labels belong to pixels), and ``names`` of the labels. No two of train, bank and queries
share a pixel. The same arguments and package versions give the same bytes; what a folder has of the same arguments and
the same code stays. ``--sheets`` adds contact sheets as PNG.
The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import webdataset
from PIL import Image

from benchmarks.teach import garments as garments_code
from benchmarks.teach import pictures as pictures_code
from benchmarks.teach.garments import BACKGROUND, CLASSES, SIDE, Garments, composite, enlarged, read_garments
from benchmarks.teach.pictures import Lesson, Picture, Scene, crop, pictures, split, unpack
from benchmarks.teach.sheets import write_sheets
from radioplat.common import terminal
from radioplat.errors import RadioplatError

FOLDER = Path("results/teach/corpora")
CROP = 96  # pixels of a side of held-out images
PER_SHARD = 500
Arrays = dict[str, Any]


def main() -> int:
    """Make the corpora unless the folder has them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--crops", type=int, default=12_000, help="for the student")
    parser.add_argument("--scenes", type=int, default=240)
    parser.add_argument("--bank", type=int, default=12, help="crops of each scene in the bank")
    parser.add_argument("--queries", type=int, default=20, help="crops of each scene to be named")
    parser.add_argument("--garments", type=int, default=2500, help="of Fashion-MNIST, in the bank and again as queries")
    parser.add_argument("--composites", type=int, default=600, help="in the bank and again as queries")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--debs", type=Path, help="folder of .deb files; default: apt-get download")
    parser.add_argument("--sheets", action="store_true", help="write contact sheets as PNG")
    given = parser.parse_args()
    counts = {name: getattr(given, name) for name in ("crops", "scenes", "bank", "queries", "garments", "composites")}
    if min(counts.values()) < 1:
        parser.error("counts must be at least 1")
    try:
        manifest = make(given.folder, counts, given.seed, given.debs)
    except RadioplatError as error:
        print(error, file=sys.stderr)
        return 2
    if given.sheets:
        write_sheets(given.folder)
    print(json.dumps({key: value for key, value in manifest.items() if key != "sha256"}))
    return 0


def make(folder: Path, counts: dict[str, int], seed: int, debs: Path | None = None) -> dict:
    """Write the corpora into ``folder`` and return the manifest; what is there from the same arguments stays.

    Raises:
        DataError: a package cannot be had, or has too little in it.
    """
    code = "".join(
        _sha256(Path(module.__file__ or "")) for module in (sys.modules[__name__], pictures_code, garments_code)
    )
    arguments = {
        "code": hashlib.sha256(code.encode()).hexdigest(),
        "seed": seed,
        "pillow": PIL.__version__,
        "numpy": np.__version__,
        **counts,
    }
    found = _present(folder, arguments)
    if found:
        return found
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    # Files count only with the manifest: it goes first, and comes last.
    (folder / "manifest.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="teach_packages") as scratch:
        versions = unpack(Path(scratch), debs)
        shown = pictures(Path(scratch))
        garments = read_garments(Path(scratch))
    scenes, lessons = split(shown, counts["scenes"])
    terminal.note(f"{len(shown)} pictures, {len(scenes)} scenes, {len(lessons)} cells for teaching")
    shutil.rmtree(folder / "train", ignore_errors=True)
    write_lessons(folder / "train", shown, lessons, counts["crops"], seed)
    np.savez(folder / "scenes.npz", **scene_crops(shown, scenes, counts["bank"], counts["queries"], seed))
    np.savez(folder / "fashion.npz", **_fashion(garments, counts["garments"], seed))
    np.savez(folder / "composites.npz", **_composites(shown, scenes, garments, counts["composites"], seed))
    manifest = {
        **arguments,
        "packages": versions,
        "pictures": len(shown),
        "pictures_with_scenes": len({scene.picture for scene in scenes}),
        "teaching_cells": len(lessons),
        "held_out_crops": counts["scenes"] * (counts["bank"] + counts["queries"]),
        "seconds": round(time.monotonic() - begin, 1),
        "sha256": {path.relative_to(folder).as_posix(): _sha256(path) for path in _files(folder)},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return manifest


def _present(folder: Path, arguments: dict) -> dict | None:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        complete = all((folder / name).is_file() for name in manifest["sha256"])
        return manifest if complete and arguments.items() <= manifest.items() else None
    except (OSError, ValueError, KeyError):
        return None


def _files(folder: Path) -> list[Path]:
    return sorted([*(folder / "train").glob("train-*.tar"), *folder.glob("*.npz")])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_lessons(folder: Path, shown: Sequence[Picture], lessons: Sequence[Lesson], count: int, seed: int) -> None:
    """Write ``count`` shuffled crops of the black cells, each cell as often as the others, as tar shards.

    A sample is ``<key>.jpg`` and ``<key>.json`` with the image's ``sha256``; neither names a picture.
    """
    folder.mkdir(parents=True)
    order = np.random.default_rng([seed, 1]).permutation(count)
    pattern = f"{str(folder).replace('%', '%%')}/train-%06d.tar"
    # A fixed time, so that the same arguments give the same bytes.
    with webdataset.ShardWriter(pattern, maxcount=PER_SHARD, verbose=0, mtime=0) as writer:
        for place, number in enumerate(order):
            lesson = lessons[number % len(lessons)]
            image = crop(shown[lesson.picture].image, lesson.box, np.random.default_rng([seed, 2, number]), False)
            file = io.BytesIO()
            image.save(file, "JPEG", quality=90)
            sidecar = json.dumps({"sha256": hashlib.sha256(file.getvalue()).hexdigest()})
            writer.write({"__key__": f"{place:06d}", "jpg": file.getvalue(), "json": sidecar.encode()})


def scene_crops(shown: Sequence[Picture], scenes: Sequence[Scene], bank: int, queries: int, seed: int) -> Arrays:
    """Return the held-out crops as the arrays of ``scenes.npz``."""
    pictures_shown, picture = np.unique([scene.picture for scene in scenes], return_inverse=True)
    arrays: Arrays = {
        "names": np.array([scene.name for scene in scenes]),
        "picture_names": np.array([shown[index].name for index in pictures_shown]),
    }
    for stream, (split_name, count) in enumerate((("bank", bank), ("queries", queries)), 3):
        images = np.empty((len(scenes) * count, CROP, CROP, 3), np.uint8)
        for label, scene in enumerate(scenes):
            rng = np.random.default_rng([seed, stream, label])
            for number in range(count):
                piece = crop(shown[scene.picture].image, getattr(scene, split_name), rng, True)
                resized = piece.resize((CROP, CROP), Image.Resampling.BICUBIC)
                images[label * count + number] = np.asarray(resized)
        arrays[f"{split_name}.images"] = images
        arrays[f"{split_name}.labels"] = np.repeat(np.arange(len(scenes), dtype=np.int64), count)
        arrays[f"{split_name}.pictures"] = np.repeat(picture.astype(np.int64), count)
    return arrays


def _fashion(garments: tuple[Garments, Garments], count: int, seed: int) -> Arrays:
    arrays: Arrays = {"names": np.array(CLASSES)}
    for stream, (split_name, source) in enumerate(zip(("bank", "queries"), garments, strict=True), 5):
        chosen = source.balanced(count, np.random.default_rng([seed, stream]))
        arrays[f"{split_name}.images"] = enlarged(chosen, CROP)
        arrays[f"{split_name}.labels"] = chosen.labels.astype(np.int64)
    return arrays


def _composites(
    shown: Sequence[Picture], scenes: Sequence[Scene], garments: tuple[Garments, Garments], count: int, seed: int
) -> Arrays:
    arrays: Arrays = {"names": np.array([BACKGROUND, *CLASSES])}
    for stream, (split_name, source) in enumerate(zip(("bank", "queries"), garments, strict=True), 7):
        images, masks = np.empty((count, SIDE, SIDE, 3), np.uint8), np.empty((count, SIDE, SIDE), np.uint8)
        for number in range(count):
            rng = np.random.default_rng([seed, stream, number])
            scene = scenes[int(rng.integers(len(scenes)))]
            ground = shown[scene.picture].image
            images[number], masks[number] = composite(ground, getattr(scene, split_name), source, rng)
        arrays[f"{split_name}.images"], arrays[f"{split_name}.masks"] = images, masks
    return arrays


if __name__ == "__main__":
    sys.exit(main())
