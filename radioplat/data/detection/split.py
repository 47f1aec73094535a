"""Read the annotated images of a split, from COCO format (``coco`` and ``images_dir``), detection shards, or both."""

from __future__ import annotations

from collections.abc import Sequence

from radioplat.common.listing import first_few
from radioplat.data.detection.coco import read_coco
from radioplat.data.detection.detection_set import DetectionSet
from radioplat.data.detection.shards import read_detection_shards
from radioplat.errors import DataError
from radioplat.spec.resolved.image_extension import image_extension
from radioplat.spec.schema.dataset import SplitConfig


def read_split(split: SplitConfig, classes: Sequence[str], where: str) -> DetectionSet:
    """Read the annotations of ``split``; no pixel is decoded.

    Args:
        classes: names by label; if empty, the COCO file's.
        where: the split's field path.

    Raises:
        DataError: the split has no annotations, they cannot be read, or their classes are not ``classes``.
    """
    dataset: DetectionSet | None = None
    if split.images_dir:
        if not split.coco:
            raise DataError("boxes are needed", where=f"{where}.coco", hint="Name the COCO-format JSON file.")
        dataset = read_coco(split.coco, split.images_dir, f"{where}.coco")
        if classes and tuple(classes) != dataset.classes:
            message = f"its classes are {first_few(dataset.classes, 5)}, not {first_few(classes, 5)}"
            raise DataError(message, where=f"{where}.coco", hint="They must be the same, in the same order.")
    for i, source in enumerate(split.tar_data_sources):
        names = classes or (dataset.classes if dataset else ())
        if not names:
            raise DataError("shards do not list their classes", where="dataset.classes", hint="Name them in order.")
        field = f"{where}.tar_data_sources[{i}].root_dir"
        read = read_detection_shards(source.root_dir, names, field, image_extension(source))
        if dataset is None:
            dataset = read
        else:
            dataset.pictures += read.pictures
            dataset.faults.counts.update(read.faults.counts)
            dataset.faults.named += read.faults.named
    if dataset is None:
        raise DataError("no data is given", where=where, hint="Set images_dir and coco, or tar_data_sources.")
    return dataset
