"""Images of an evaluation: training images as the bank, held-out images as the queries."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from radioplat.common.ranks import Ranks
from radioplat.data.index.build import build_index
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.sample_images import evaluation_images
from radioplat.data.loading.split_images import Images
from radioplat.errors import DataError
from radioplat.spec.schema.root import Spec


def open_images(
    spec: Spec, sizes: set[int], names: Sequence[str] = (), built: bool = False
) -> tuple[Images, Images, list[str]]:
    """Open the bank (train split) and the queries (val split); return them with the class names.

    Args:
        sizes: of the views, in pixels.
        names: class names to use if the training images have none.
        built: take the indexes that another process has just built in the same folder, without a look at the files.

    Raises:
        DataError: a split cannot be read, or is not ``built``.
    """
    index_dir = Path(spec.dataset.index_dir or Path(spec.results_dir) / "index")
    dataset = spec.dataset
    batch = spec.evaluate.batch_size or dataset.val_batch_size or dataset.batch_size
    splits: list[Images] = []
    classes: list[str] | None = None
    for name, split in (("train", dataset.train_dataset), ("val", dataset.val_dataset)):
        where = f"dataset.{name}_dataset"
        index = (
            ShardIndex.load(index_dir / name)
            if built
            else build_index(split, where, index_dir / name, max_pixels=dataset.max_pixels, classes=classes)
        )
        classes = index.classes or list(names) if classes is None else classes
        splits.append(evaluation_images(dataset, split, index, sizes, batch, spec.evaluate.max_images))
    return splits[0], splits[1], classes or []


def open_images_together(ranks: Ranks, spec: Spec, sizes: set[int], names: Sequence[str] = ()) -> tuple[Images, Images]:
    """Open bank and queries on every rank, as :func:`open_images`; rank 0 builds the indexes, and the others read them.

    A rank that has another folder of indexes, or an old one, builds its own.

    Raises:
        DataError: on every rank, if a split cannot be read on one of them, or is not the same on all.
    """
    opened: list[tuple[Images, Images]] = []

    def open_here(built: bool = False) -> str:
        """Open the images, and return a hash of their ids and of the files."""
        opened.append(open_images(spec, sizes, names, built)[:2])
        digest = hashlib.sha256()
        for images in opened[-1]:
            digest.update(images.rows.tobytes() + images.reader.index.fingerprint().encode())
        return digest.hexdigest()

    first = ranks.from_first(open_here)

    def open_same() -> None:
        """Open the images of rank 0."""
        with contextlib.suppress(DataError):
            if open_here(built=True) == first:
                return
        if open_here() != first:
            message = f"worker {ranks.rank} finds other images than worker 0"
            hint = "Every worker must see the files of both splits under the same paths."
            raise DataError(message, where="dataset", hint=hint)

    ranks.alike(lambda: open_same() if ranks.rank else None)
    return opened[-1]
