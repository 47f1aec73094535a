"""The quickstart's corpora: images from installed packages, packed as WebDataset shards that are equal in every run."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image

from radioplat.common.atomic_files import written_aside
from radioplat.errors import DataError
from radioplat.quickstart.labelled import Labelled, labelled_images
from radioplat.quickstart.photographs import PHOTOGRAPHS, crops, misfits

PACKING = 2  # increase it if the same package versions are to give other shards
SEED = 1234
SAMPLES_PER_SHARD = 200
DUPLICATE_SHARE = 0.04  # share of a training corpus that is written again, byte for byte, one to four times
_MADE_FROM = ("matplotlib", "numpy", "pillow", "scikit-image", "scikit-learn", "webdataset")


@dataclass(frozen=True)
class Corpora:
    """Folders of tar shards.

    A sample is ``<key>.jpg`` or ``.png`` and ``<key>.json`` with ``sha256`` (of the image file), ``caption`` and
    ``label`` (a name).

    Attributes:
        photographs: crops of real photographs, labelled with the photograph's name; with misfits and duplicates.
        labelled: digits, faces and non-faces; with misfits and duplicates.
        held_out: crops of the other parts of the same photographs, which share no pixel with ``photographs``.
        labelled_held_out: images of the same classes as ``labelled`` that are not in it.
    """

    photographs: Path
    labelled: Path
    held_out: Path
    labelled_held_out: Path


@dataclass(frozen=True)
class _Sample:
    image: bytes
    extension: str
    label: str
    caption: str


def pack_corpora(folder: Path, per_photograph: int = 90) -> Corpora:
    """Write the corpora below ``folder``; do nothing if they are complete and from the same package versions.

    Args:
        folder: created if missing. Only shards of an earlier packing are replaced.
        per_photograph: number of training crops per photograph; the other counts follow from it.

    Raises:
        DataError: a package that contains the images is not installed.
    """
    folder = Path(folder)
    made_from: dict[str, object] = {"packing": PACKING, "per_photograph": per_photograph, **_versions()}
    corpora = Corpora(*(folder / name for name in Corpora.__dataclass_fields__))
    if _whole(folder, made_from):
        return corpora
    # Shards are valid only with the manifest: remove it before they change, and write it after them.
    manifest = folder / "manifest.json"
    manifest.unlink(missing_ok=True)
    aside = folder / f".packing-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    shards: dict[str, int] = {}
    for name, samples in _SOURCES.items():
        packed = _write(aside / name, name, samples(per_photograph))
        (folder / name).mkdir(parents=True, exist_ok=True)
        for stale in (folder / name).glob(f"{name}-*.tar"):
            stale.unlink()
        for shard in packed:
            shards[f"{name}/{shard.name}"] = shard.stat().st_size
            shard.replace(folder / name / shard.name)
    shutil.rmtree(aside)
    with written_aside(manifest) as part:
        part.write_text(json.dumps({"made_from": made_from, "shards": shards}, indent=1))
    return corpora


def _versions() -> dict[str, str]:
    try:
        return {name: importlib.metadata.version(name) for name in _MADE_FROM}
    except importlib.metadata.PackageNotFoundError as error:
        raise DataError(
            f"the package {error.name}, which carries images of the quickstart, is not installed",
            hint="pip install 'radioplat[quickstart]'",
        ) from error


def _whole(folder: Path, made_from: dict[str, object]) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        return manifest["made_from"] == made_from and all(
            (folder / shard).stat().st_size == size for shard, size in manifest["shards"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _write(folder: Path, name: str, samples: list[_Sample]) -> list[Path]:
    """Write shards of shuffled samples, and return their paths in order; a key contains the label and is unique."""
    folder.mkdir(parents=True)
    pattern = f"{str(folder).replace('%', '%%')}/{name}-%06d.tar"
    order = np.random.default_rng([SEED, len(name), len(samples)]).permutation(len(samples))
    # A fixed time and owner, so that the same packages give the same bytes.
    with webdataset.ShardWriter(pattern, maxcount=SAMPLES_PER_SHARD, verbose=0, mtime=0) as writer:
        for place, number in enumerate(order):
            sample = samples[number]
            sidecar = {
                "sha256": hashlib.sha256(sample.image).hexdigest(),
                "caption": sample.caption,
                "label": sample.label,
            }
            writer.write(
                {
                    "__key__": f"{sample.label}_{place:06d}",
                    sample.extension: sample.image,
                    "json": json.dumps(sidecar).encode(),
                }
            )
    return sorted(folder.glob("*.tar"))


def _photographs(per_photograph: int) -> list[_Sample]:
    samples = []
    for photograph in PHOTOGRAPHS:
        for number, image in enumerate(crops(photograph, False, per_photograph, SEED)):
            # Every sixteenth is a PNG, because real shards contain several formats.
            extension = "png" if number % 16 == 15 else "jpg"
            samples.append(_encode(image, extension, photograph.name, photograph.caption))
        for image in misfits(photograph, max(2, per_photograph // 18), SEED):
            samples.append(_encode(image, "jpg", photograph.name, photograph.caption))
    return samples + list(_duplicates(samples))


def _held_out(per_photograph: int) -> list[_Sample]:
    return [
        _encode(image, "jpg", photograph.name, photograph.caption)
        for photograph in PHOTOGRAPHS
        for image in crops(photograph, True, max(2, per_photograph // 4), SEED)
    ]


def _labelled(per_photograph: int) -> list[_Sample]:
    rng = np.random.default_rng([SEED, 3])
    images = list(islice(labelled_images(held_out=False), per_photograph * 12))
    samples = [_encode_labelled(image, image.enlarged(rng)) for image in images]
    samples += [_encode_labelled(image, image.raw()) for image in images[::20]]
    return samples + list(_duplicates(samples))


def _labelled_held_out(per_photograph: int) -> list[_Sample]:
    rng = np.random.default_rng([SEED, 4])
    images = islice(labelled_images(held_out=True), per_photograph * 3)
    return [_encode_labelled(image, image.enlarged(rng)) for image in images]


def _duplicates(samples: list[_Sample]) -> Iterator[_Sample]:
    rng = np.random.default_rng([SEED, 5, len(samples)])
    for number in rng.choice(len(samples), max(2, int(len(samples) * DUPLICATE_SHARE)), replace=False):
        yield from [samples[number]] * int(rng.integers(1, 5))


def _encode_labelled(labelled: Labelled, image: Image.Image) -> _Sample:
    extension = "png" if labelled.label.startswith("digit") else "jpg"
    return _encode(image, extension, labelled.label, labelled.caption)


def _encode(image: Image.Image, extension: str, label: str, caption: str) -> _Sample:
    file = io.BytesIO()
    if extension == "png":
        image.save(file, "PNG", compress_level=3)
    else:
        image.save(file, "JPEG", quality=90)
    return _Sample(file.getvalue(), extension, label, caption)


_SOURCES: dict[str, Callable[[int], list[_Sample]]] = {
    "photographs": _photographs,
    "labelled": _labelled,
    "held_out": _held_out,
    "labelled_held_out": _labelled_held_out,
}
