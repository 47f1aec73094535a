"""A split with boxes: a COCO-format folder (``coco`` beside ``images_dir``) or detection shards, as one set."""

from __future__ import annotations

from collections.abc import Sequence

from radioplat.data.detection.coco import read_coco
from radioplat.data.detection.images import DetectionSet
from radioplat.data.detection.shards import read_detection_shards
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig


def read_split(split: SplitConfig, classes: Sequence[str], where: str) -> DetectionSet:
    """Read what annotates ``split``; no pixel is decoded.

    Args:
        classes: names by label; empty where a COCO file names them.
        where: the split's field path.

    Raises:
        DataError: nothing annotates it, an annotation cannot be read, or its classes are not ``classes``.
    """
    found: DetectionSet | None = None
    if split.images_dir:
        if not split.coco:
            raise DataError("boxes are needed", where=f"{where}.coco", hint="Name the COCO-format JSON file.")
        found = read_coco(split.coco, split.images_dir, f"{where}.coco")
        if classes and tuple(classes) != found.classes:
            message = f"its classes are {_few(found.classes)}, not {_few(classes)}"
            raise DataError(message, where=f"{where}.coco", hint="They must be the same, in the same order.")
    for i, source in enumerate(split.tar_data_sources):
        names = classes or (found.classes if found else ())
        if not names:
            raise DataError("shards do not list their classes", where="dataset.classes", hint="Name them in order.")
        read = read_detection_shards(source.root_dir, names, f"{where}.tar_data_sources[{i}].root_dir")
        if found is None:
            found = read
        else:
            found.pictures += read.pictures
            found.faults.counts.update(read.faults.counts)
            found.faults.named += read.faults.named
    if found is None:
        raise DataError("no data is given", where=where, hint="Set images_dir and coco, or tar_data_sources.")
    return found


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
