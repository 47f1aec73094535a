"""A few images of a split without augmentation, to measure ranges and check teachers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from radioplat.common.cpu_threads import decode_threads
from radioplat.data.index.build import build_index
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.run_data import RunData
from radioplat.data.loading.split_images import Images
from radioplat.data.views.render import ViewSpec
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import DatasetConfig, SplitConfig
from radioplat.spec.schema.root import Spec


def sample_images(
    spec: Spec, sizes: set[int], count: int, name: str = "train", whole: bool = False
) -> dict[int, np.ndarray]:
    """Return up to ``count`` images of split ``name``, the same at each size: uint8 ``[N, 3, size, size]`` by size.

    Args:
        whole: the whole image, stretched, as for detectors; else the centre crop.

    Raises:
        DataError: the split cannot be read, or contains no image that can be decoded.
    """
    dataset, where = spec.dataset, f"dataset.{name}_dataset"
    split = getattr(dataset, f"{name}_dataset")
    index_dir = Path(dataset.index_dir or Path(spec.results_dir) / "index") / name
    index = build_index(split, where, index_dir, max_pixels=dataset.max_pixels)
    batches = list(evaluation_images(dataset, split, index, sizes, 16, count, whole).batches())
    valid = [batch.weight > 0 for batch in batches]
    if not any(v.any() for v in valid):
        hint = "Give a folder or shards of JPEG, PNG or WebP images."
        raise DataError("no image can be decoded", where=where, hint=hint)
    return {
        size: np.concatenate([b.views[str(size)].pixels[v] for b, v in zip(batches, valid, strict=True)])
        for size in sizes
    }


def evaluation_images(
    dataset: DatasetConfig,
    split: SplitConfig,
    index: ShardIndex,
    sizes: set[int],
    batch: int,
    limit: int | None,
    whole: bool = False,
) -> Images:
    """Return a random subset of the images of ``split`` that pass its filters, in evaluation views.

    Args:
        dataset: spec section, for limits and threads.
        split: one split of it.
        index: of the split.
        sizes: pixels a side of the views, which are named by them.
        batch: images of a batch.
        limit: maximum number of images; None: all.
        whole: the whole image, stretched, as for detectors; else the centre crop.
    """
    rows = random_subset(RunData.create(index, split, dataset.max_pixels).kept(), limit, split.seed)
    views = [ViewSpec(str(size), size) for size in sorted(sizes)]
    reader = MicroBatchReader(
        index, None, views, None, split.seed, batch, dataset.max_pixels,
        whole=whole, storage_timeout_s=dataset.storage_timeout_s,
    )  # fmt: skip
    return Images(rows, reader, batch, decode_threads(dataset.workers))


def random_subset(rows: np.ndarray, limit: int | None, seed: int) -> np.ndarray:
    """Return at most ``limit`` of ``rows``, chosen by ``seed``, in their order; None: all."""
    if limit is None or len(rows) <= limit:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, limit, replace=False))


def check_calibration_images(batches: Iterable[np.ndarray], where: str) -> None:
    """Check that ranges can be measured on ``batches``, each uint8 ``[N, 3, H, W]``.

    Raises:
        DataError: there are no images, or all are of a single colour; ``where`` is the split's field.
    """
    batches = [images for images in batches if len(images)]
    if not batches:
        raise DataError("there are no calibration images", where=where, hint="Give a folder or shards with images.")
    if all((images.max((2, 3)) == images.min((2, 3))).all() for images in batches):
        hint = "Ranges measured on them are wrong for photographs; give real images."
        raise DataError("all calibration images are of one colour", where=where, hint=hint)
