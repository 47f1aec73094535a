"""Contact sheets of the corpora that `benchmarks.teach.corpora` made, to look at: ``sheets/*.png`` in their folder."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

COLUMNS, ROWS, SIDE = 24, 14, 96
OF_A_SCENE = 4  # crops of bank, and as many of queries beside them


def write_sheets(folder: Path) -> list[Path]:
    """Write a sheet of each corpus and return their paths."""
    sheets = folder / "sheets"
    sheets.mkdir(exist_ok=True)
    tiles = {"train": _train(folder / "train"), "scenes": _scenes(folder / "scenes.npz")}
    with np.load(folder / "fashion.npz") as fashion, np.load(folder / "composites.npz") as composites:
        tiles["fashion"] = list(fashion["queries.images"][: COLUMNS * ROWS])
        images, masks = composites["queries.images"][:140], composites["queries.masks"][:140]
    # A mask beside its image: each class a grey.
    grey = np.repeat(masks[..., None] * 23, 3, 3)
    tiles["composites"] = [tile for pair in zip(images, grey, strict=True) for tile in pair]
    paths = []
    for name, images in tiles.items():
        paths.append(sheets / f"{name}.png")
        _sheet(images).save(paths[-1])
    return paths


def _train(folder: Path) -> list[np.ndarray]:
    found = []
    with tarfile.open(min(folder.glob("train-*.tar"))) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file and member.name.endswith(".jpg") and len(found) < COLUMNS * ROWS:
                found.append(np.asarray(Image.open(io.BytesIO(file.read()))))
    return found


def _scenes(path: Path) -> list[np.ndarray]:
    with np.load(path) as arrays:
        scenes = len(arrays["names"])
        tiles = []
        shown = COLUMNS * ROWS // (2 * OF_A_SCENE)
        images = {split: arrays[f"{split}.images"] for split in ("bank", "queries")}
        for label in np.linspace(0, scenes - 1, min(shown, scenes)).astype(int):
            for split, own in images.items():
                tiles += list(own[np.flatnonzero(arrays[f"{split}.labels"] == label)[:OF_A_SCENE]])
        return tiles


def _sheet(tiles: Sequence[np.ndarray]) -> Image.Image:
    sheet = Image.new("RGB", (COLUMNS * (SIDE + 2), -(-len(tiles) // COLUMNS) * (SIDE + 2)), "white")
    for number, pixels in enumerate(tiles):
        tile = Image.fromarray(pixels)
        tile.thumbnail((SIDE, SIDE))
        sheet.paste(tile, (number % COLUMNS * (SIDE + 2), number // COLUMNS * (SIDE + 2)))
    return sheet
