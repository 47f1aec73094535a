"""The shards of ``benchmarks.ingest``: real photographs, cut and resized to 400 to 1400 px."""

from __future__ import annotations

import io
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import webdataset as wds
from PIL import Image

from radioplat.quickstart.photographs import PHOTOGRAPHS

SHARDS, PER_SHARD = 8, 300
LONG_SIDES, SHAPES, QUALITIES = (400, 1400), (0.6, 1.7), (86, 94)


def make_shards(folder: Path, shards: int = SHARDS) -> None:
    """Write 300 JPEGs into each of ``shards`` tars under ``folder``; shards that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    todo = [n for n in range(shards) if not (folder / f"{n:03d}.tar").exists()]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_make_shard, todo, [folder] * len(todo)))


def _make_shard(number: int, folder: Path) -> None:
    rng = np.random.default_rng([11, number])
    scenes = [image for photograph in PHOTOGRAPHS for image in photograph.open()]
    aside = folder / f".{number:03d}"
    with wds.TarWriter(str(aside)) as tar:
        for i in range(PER_SHARD):
            buffer = io.BytesIO()
            _cut(scenes[i % len(scenes)], rng).save(buffer, "JPEG", quality=int(rng.integers(*QUALITIES)))
            tar.write({"__key__": f"{number:03d}{i:04d}", "jpg": buffer.getvalue()})
    aside.rename(folder / f"{number:03d}.tar")


def _cut(scene: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A random part, at least 60% of a side, resized so that its long side lies in :data:`LONG_SIDES`."""
    shape = math.exp(rng.uniform(*np.log(SHAPES)))
    share = rng.uniform(0.6, 1.0)
    width = min(scene.width, scene.height * shape) * share
    height = width / shape
    left, top = rng.uniform(0, scene.width - width), rng.uniform(0, scene.height - height)
    scale = rng.uniform(*LONG_SIDES) / max(width, height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return scene.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
