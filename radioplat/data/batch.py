"""A micro-batch as a training worker receives it: the views, ids and labels of consecutive samples of the order."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class View:
    """One resolution x crop of every image of a micro-batch.

    Attributes:
        pixels: uint8 ``[B, 3, H, W]``, RGB, not normalised.
        homography: float32 ``[B, 3, 3]``, maps homogeneous view pixels (x, y, 1) to source image pixels.
        valid: bool ``[B, H, W]``, True where a pixel belongs to the image; None if all do.
        boxes: float32 ``[B, M, 6]``, of the visible objects, in pixels of the view: left, top, right, bottom, label (-1
            for padding), and 1 for a crowd; None without annotations.
    """

    pixels: np.ndarray
    homography: np.ndarray
    valid: np.ndarray | None = None
    boxes: np.ndarray | None = None

    @cached_property
    def shown(self) -> np.ndarray:
        """``pixels`` with invalid ones black: the input of the models."""
        return self.pixels if self.valid is None else np.where(self.valid[:, None], self.pixels, np.uint8(0))


@dataclass(frozen=True)
class Batch:
    """A micro-batch.

    Attributes:
        micro_batch: its number in the run, or -1 for padding (weight zero, not sent to teachers).
        views: by view name (``"224"``).
        sample_id: int64 ``[B]``, rows of the run's copy of the index.
        position: int64 ``[B]``, positions in the order.
        weight: float32 ``[B]``, 0 for an unreadable sample, else 1.
        label: int64 ``[B]``, -1 if there is none.
        faults: reason by sample_id for each sample of weight 0.
    """

    micro_batch: int
    views: dict[str, View]
    sample_id: np.ndarray
    position: np.ndarray
    weight: np.ndarray
    label: np.ndarray
    faults: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sample_id)

    @cached_property
    def checksums(self) -> np.ndarray:
        """crc32 of each sample's pixels in the first view, int64 ``[B]``; takes a millisecond per megabyte."""
        pixels = next(iter(self.views.values())).pixels
        return np.array([zlib.crc32(np.ascontiguousarray(image).data) for image in pixels], np.int64)
