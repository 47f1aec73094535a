"""Bounding boxes by sample id: annotations are joined to the shard index once and saved next to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from radioplat.common.atomic_files import written_aside
from radioplat.data.detection.boxes import Boxes
from radioplat.data.detection.detection_set import Picture
from radioplat.data.index.shard_index import ShardIndex
from radioplat.errors import DataError

_FILE = "boxes.npz"


class BoxTable:
    """Boxes of the rows of an index.

    Attributes:
        known: bool ``[N]``, True where the image is annotated, with or without objects.
        starts: int64 ``[N + 1]``, the first box of each row.
        all: the boxes of all rows, one after another.
    """

    def __init__(self, known: np.ndarray, starts: np.ndarray, all_boxes: Boxes) -> None:
        self.known, self.starts, self.all = known, starts, all_boxes

    @classmethod
    def join(cls, index: ShardIndex, pictures: Iterable[Picture]) -> BoxTable:
        """Assign the boxes of ``pictures`` to the rows of ``index`` by file path and byte offset."""
        by_place = {(picture.path, picture.offset): picture.boxes for picture in pictures}
        paths, shards, offsets = index.shard_paths, np.asarray(index.shard), np.asarray(index.offset)
        by_row = [by_place.get((paths[s], o)) for s, o in zip(shards.tolist(), offsets.tolist(), strict=True)]
        counts = [0 if boxes is None else len(boxes) for boxes in by_row]
        annotated = [boxes for boxes in by_row if boxes is not None]
        columns = [np.concatenate([[], *(getattr(b, n) for b in annotated)]) for n in ("labels", "crowd", "area")]
        corners = np.concatenate([np.empty((0, 4)), *(boxes.xyxy for boxes in annotated)])
        return cls(
            np.array([boxes is not None for boxes in by_row], bool),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            Boxes.of(corners, *columns),
        )

    def of(self, row: int) -> Boxes:
        """Return the boxes of one sample, in source pixels."""
        return self.all.take(np.arange(self.starts[row], self.starts[row + 1]))

    def digest(self) -> str:
        """Return the sha256 (hex) of the table; it is part of the run's identity."""
        digest = hashlib.sha256()
        for array in (self.known, self.starts, self.all.xyxy, self.all.labels, self.all.crowd):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def save(self, directory: Path) -> None:
        """Write the table into ``directory``."""
        with written_aside(directory / _FILE) as aside, open(aside, "wb") as file:
            np.savez(file, known=self.known, starts=self.starts, **vars(self.all))

    @classmethod
    def load(cls, directory: Path) -> BoxTable | None:
        """Read the table that :meth:`save` wrote; return None if there is none.

        Raises:
            DataError: the file is damaged.
        """
        if not (directory / _FILE).exists():
            return None
        try:
            with np.load(directory / _FILE) as arrays:
                boxes = Boxes(*(arrays[name] for name in ("xyxy", "labels", "crowd", "area")))
                return cls(arrays["known"], arrays["starts"], boxes)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"the run's boxes cannot be read: {error}", where=str(directory / _FILE)) from None


def padded(boxes: Iterable[Boxes]) -> np.ndarray:
    """Stack the boxes of several images: float32 ``[B, M, 6]`` of left, top, right, bottom, label, crowd.

    Rows with label -1 pad each image to the most boxes, ``M``.
    """
    boxes = list(boxes)
    out = np.zeros((len(boxes), max((len(b) for b in boxes), default=0), 6), np.float32)
    out[..., 4] = -1
    for row, image in zip(out, boxes, strict=True):
        row[: len(image), :4], row[: len(image), 4], row[: len(image), 5] = image.xyxy, image.labels, image.crowd
    return out
