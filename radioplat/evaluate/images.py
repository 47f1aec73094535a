"""The images a metric is measured on: labelled training images as the bank, held-out images as the queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radioplat.cores import decode_threads
from radioplat.data.index import build_index
from radioplat.data.reader import GrainReader
from radioplat.data.run_data import RunData
from radioplat.data.split_images import Images
from radioplat.data.views import ViewSpec
from radioplat.errors import DataError
from radioplat.spec.root import Spec


def open_images(spec: Spec, sizes: set[int]) -> tuple[Images, Images, list[str]]:
    """Bank (train split), queries (val split) and the class names.

    Args:
        sizes: of the views, in pixels.

    Raises:
        DataError: a split cannot be read.
    """
    index_dir = Path(spec.dataset.index_dir or Path(spec.results_dir) / "index")
    dataset = spec.dataset
    batch = spec.evaluate.batch_size or dataset.val_batch_size or dataset.batch_size
    found: list[Images] = []
    classes: list[str] | None = None
    for name, split in (("train", dataset.train_dataset), ("val", dataset.val_dataset)):
        index = build_index(
            split, f"dataset.{name}_dataset", index_dir / name, max_pixels=dataset.max_pixels, classes=classes
        )
        classes = index.classes if classes is None else classes
        rows = RunData.create(index, split, dataset.max_pixels).kept()
        views = [ViewSpec(str(size), size) for size in sorted(sizes)]
        reader = GrainReader(index, None, views, None, split.seed, batch, dataset.max_pixels)
        found.append(
            Images(_at_most(rows, spec.evaluate.max_images, split.seed), reader, batch, decode_threads(dataset.workers))
        )
    return found[0], found[1], classes or []


def sample_images(spec: Spec, sizes: set[int], count: int, name: str = "train") -> dict[int, np.ndarray]:
    """Up to ``count`` images of split ``name``, the same at each size: uint8 ``[N, 3, size, size]`` by size.

    Raises:
        DataError: the split cannot be read, or holds no image that can be decoded.
    """
    dataset, where = spec.dataset, f"dataset.{name}_dataset"
    split = getattr(dataset, f"{name}_dataset")
    index_dir = Path(dataset.index_dir or Path(spec.results_dir) / "index") / name
    index = build_index(split, where, index_dir, max_pixels=dataset.max_pixels)
    rows = _at_most(RunData.create(index, split, dataset.max_pixels).kept(), count, split.seed)
    views = [ViewSpec(str(size), size) for size in sorted(sizes)]
    reader = GrainReader(index, None, views, None, split.seed, 16, dataset.max_pixels)
    batches = list(Images(rows, reader, 16, decode_threads(dataset.workers)).batches())
    alive = [batch.weight > 0 for batch in batches]
    if not any(a.any() for a in alive):
        raise DataError("no image can be decoded", where=where)
    return {
        size: np.concatenate([b.views[str(size)].pixels[a] for b, a in zip(batches, alive, strict=True)])
        for size in sizes
    }


def _at_most(rows: np.ndarray, limit: int | None, seed: int) -> np.ndarray:
    """A seeded subset, in index order, where there are more rows than asked for."""
    if limit is None or len(rows) <= limit:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, limit, replace=False))
