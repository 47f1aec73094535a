"""A few images of a split as they are, without augmentation: what ranges are measured on, and teachers looked at."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from radioplat.common.cpu_threads import decode_threads
from radioplat.data.index.build import build_index
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.run_data import RunData
from radioplat.data.loading.split_images import Images
from radioplat.data.views.render import ViewSpec
from radioplat.errors import DataError
from radioplat.spec.schema.root import Spec


def sample_images(
    spec: Spec, sizes: set[int], count: int, name: str = "train", whole: bool = False
) -> dict[int, np.ndarray]:
    """Up to ``count`` images of split ``name``, the same at each size: uint8 ``[N, 3, size, size]`` by size.

    Args:
        whole: all of an image, stretched, as detectors see it; else its centred square.

    Raises:
        DataError: the split cannot be read, or holds no image that can be decoded.
    """
    dataset, where = spec.dataset, f"dataset.{name}_dataset"
    split = getattr(dataset, f"{name}_dataset")
    index_dir = Path(dataset.index_dir or Path(spec.results_dir) / "index") / name
    index = build_index(split, where, index_dir, max_pixels=dataset.max_pixels)
    rows = at_most(RunData.create(index, split, dataset.max_pixels).kept(), count, split.seed)
    views = [ViewSpec(str(size), size) for size in sorted(sizes)]
    reader = MicroBatchReader(
        index,
        None,
        views,
        None,
        split.seed,
        16,
        dataset.max_pixels,
        whole=whole,
        storage_timeout_s=dataset.storage_timeout_s,
    )
    batches = list(Images(rows, reader, 16, decode_threads(dataset.workers)).batches())
    alive = [batch.weight > 0 for batch in batches]
    if not any(a.any() for a in alive):
        hint = "Name a folder or shards of JPEG, PNG or WebP images."
        raise DataError("no image can be decoded", where=where, hint=hint)
    return {
        size: np.concatenate([b.views[str(size)].pixels[a] for b, a in zip(batches, alive, strict=True)])
        for size in sizes
    }


def at_most(rows: np.ndarray, limit: int | None, seed: int) -> np.ndarray:
    """A seeded subset, in index order, where there are more rows than asked for."""
    if limit is None or len(rows) <= limit:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, limit, replace=False))


def require_pictures(batches: Iterable[np.ndarray], where: str) -> None:
    """Refuse images that no range can be measured on: none, or all of one colour. Batches uint8 ``[N, 3, H, W]``.

    Raises:
        DataError: says so; ``where`` is the split's field.
    """
    batches = [images for images in batches if len(images)]
    if not batches:
        raise DataError("there are no calibration images", where=where, hint="Name a folder or shards that hold some.")
    if all((images.max((2, 3)) == images.min((2, 3))).all() for images in batches):
        hint = "Ranges measured on them fit no photograph; give real images."
        raise DataError("all calibration images are of one colour", where=where, hint=hint)
