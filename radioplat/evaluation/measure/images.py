"""Images of an evaluation: training images as the bank, held-out images as the queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from radioplat.data.index.build import build_index
from radioplat.data.loading.sample_images import evaluation_images
from radioplat.data.loading.split_images import Images
from radioplat.spec.schema.root import Spec


def open_images(spec: Spec, sizes: set[int], names: Sequence[str] = ()) -> tuple[Images, Images, list[str]]:
    """Open the bank (train split) and the queries (val split); return them with the class names.

    Args:
        sizes: of the views, in pixels.
        names: class names to use if the training images have none.

    Raises:
        DataError: a split cannot be read.
    """
    index_dir = Path(spec.dataset.index_dir or Path(spec.results_dir) / "index")
    dataset = spec.dataset
    batch = spec.evaluate.batch_size or dataset.val_batch_size or dataset.batch_size
    splits: list[Images] = []
    classes: list[str] | None = None
    for name, split in (("train", dataset.train_dataset), ("val", dataset.val_dataset)):
        index = build_index(
            split, f"dataset.{name}_dataset", index_dir / name, max_pixels=dataset.max_pixels, classes=classes
        )
        classes = index.classes or list(names) if classes is None else classes
        splits.append(evaluation_images(dataset, split, index, sizes, batch, spec.evaluate.max_images))
    return splits[0], splits[1], classes or []
