"""The boxes of a run by sample id: what annotations say, joined to the index once and kept beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from radioplat.common.atomic_files import written_aside
from radioplat.data.detection.boxes import Boxes
from radioplat.data.detection.images import Picture
from radioplat.data.index.shard_index import ShardIndex
from radioplat.errors import DataError

_FILE = "boxes.npz"


class BoxTable:
    """Boxes of the rows of an index.

    Attributes:
        known: bool ``[N]``, whether the annotations speak of the image; without objects it is known too.
        starts: int64 ``[N + 1]``, the first box of each row.
        all: the boxes of all rows, one after another.
    """

    def __init__(self, known: np.ndarray, starts: np.ndarray, all_boxes: Boxes) -> None:
        self.known, self.starts, self.all = known, starts, all_boxes

    @classmethod
    def join(cls, index: ShardIndex, pictures: Iterable[Picture]) -> BoxTable:
        """The boxes of ``pictures`` at the rows of ``index`` that hold the same bytes."""
        by_place = {(picture.path, picture.offset): picture.boxes for picture in pictures}
        paths, shards, offsets = index.shard_paths, np.asarray(index.shard), np.asarray(index.offset)
        found = [by_place.get((paths[s], o)) for s, o in zip(shards.tolist(), offsets.tolist(), strict=True)]
        counts = [0 if boxes is None else len(boxes) for boxes in found]
        there = [boxes for boxes in found if boxes is not None]
        columns = [np.concatenate([[], *(getattr(b, n) for b in there)]) for n in ("labels", "crowd", "area")]
        corners = np.concatenate([np.empty((0, 4)), *(boxes.xyxy for boxes in there)])
        return cls(
            np.array([boxes is not None for boxes in found], bool),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            Boxes.of(corners, *columns),
        )

    def of(self, row: int) -> Boxes:
        """Of one sample, in source pixels."""
        return self.all.take(np.arange(self.starts[row], self.starts[row + 1]))

    def digest(self) -> str:
        """sha256 (hex) of all of it: an order with other boxes is another run."""
        found = hashlib.sha256()
        for array in (self.known, self.starts, self.all.xyxy, self.all.labels, self.all.crowd):
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def save(self, directory: Path) -> None:
        """Write it into ``directory``."""
        everything = self.all
        with written_aside(directory / _FILE) as aside, open(aside, "wb") as file:
            np.savez(
                file,
                known=self.known,
                starts=self.starts,
                xyxy=everything.xyxy,
                labels=everything.labels,
                crowd=everything.crowd,
                area=everything.area,
            )

    @classmethod
    def load(cls, directory: Path) -> BoxTable | None:
        """What :meth:`save` wrote; None where there is nothing.

        Raises:
            DataError: the file is torn.
        """
        if not (directory / _FILE).exists():
            return None
        try:
            with np.load(directory / _FILE) as held:
                boxes = Boxes(*(held[name] for name in ("xyxy", "labels", "crowd", "area")))
                return cls(held["known"], held["starts"], boxes)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"the run's boxes cannot be read: {error}", where=str(directory / _FILE)) from None


def padded(boxes: Iterable[Boxes]) -> np.ndarray:
    """float32 ``[B, M, 6]``: left, top, right, bottom, label, crowd; filled up with label -1 to the longest."""
    boxes = list(boxes)
    out = np.zeros((len(boxes), max((len(b) for b in boxes), default=0), 6), np.float32)
    out[..., 4] = -1
    for row, mine in zip(out, boxes, strict=True):
        row[: len(mine), :4], row[: len(mine), 4], row[: len(mine), 5] = mine.xyxy, mine.labels, mine.crowd
    return out
