"""Boxes of the objects in one image, and what was wrong with those that cannot be used.

Coordinates are continuous, as in :mod:`radioplat.data.views.render`: pixel (i, j) is the square [i, i+1) x [j, j+1),
so a box that covers one pixel is one wide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NAMED = 20  # examples kept of each kind of fault
_NEAR = 1e-3  # pixels; what rounding in an annotation file may add
_FLAT = np.finfo(np.float64).tiny  # square pixels: sides above 0 may have a product that is none


@dataclass(frozen=True)
class Boxes:
    """The objects of one image.

    Attributes:
        xyxy: float64 ``[N, 4]``, left, top, right, bottom in pixels.
        labels: int64 ``[N]``, classes from 0.
        crowd: bool ``[N]``, whether the box is around many objects (COCO's ``iscrowd``): nothing to learn from it, and
            whoever finds something there is neither right nor wrong.
        area: float64 ``[N]``, pixels; of the object where its outline is known, else of its box.
    """

    xyxy: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    area: np.ndarray

    @classmethod
    def of(
        cls,
        xyxy: Sequence[Sequence[float]] | np.ndarray,
        labels: Sequence[int] | np.ndarray,
        crowd: Sequence[bool] | np.ndarray | None = None,
        area: Sequence[float] | np.ndarray | None = None,
    ) -> Boxes:
        """From numbers; no crowds, and the boxes' own areas, where nothing else is said."""
        corners = np.asarray(xyxy, np.float64).reshape(-1, 4)
        own = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        return cls(
            corners,
            np.asarray(labels, np.int64).reshape(-1),
            np.zeros(len(corners), bool) if crowd is None else np.asarray(crowd, bool).reshape(-1),
            own if area is None else np.asarray(area, np.float64).reshape(-1),
        )

    @classmethod
    def none(cls) -> Boxes:
        """Of an image without objects."""
        return cls.of([], [])

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, keep: np.ndarray) -> Boxes:
        """Those that ``keep`` (a mask or indices) names."""
        return Boxes(self.xyxy[keep], self.labels[keep], self.crowd[keep], self.area[keep])

    def normalized(self, width: float, height: float) -> np.ndarray:
        """float32 ``[N, 4]``: centre x, centre y, width, height as shares of the image, DETR's form."""
        low, high = self.xyxy[:, :2], self.xyxy[:, 2:]
        return (np.hstack([(low + high) / 2, high - low]) / (width, height, width, height)).astype(np.float32)


@dataclass(frozen=True)
class Detections:
    """What a detector finds in one image.

    Attributes:
        xyxy: float ``[N, 4]``, left, top, right, bottom in pixels.
        labels: int ``[N]``, classes from 0.
        scores: float ``[N]``, the higher the surer.
    """

    xyxy: np.ndarray
    labels: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, xyxy: Any, labels: Any, scores: Any) -> Detections:
        """From numbers."""
        corners = np.asarray(xyxy, np.float64).reshape(-1, 4)
        return cls(corners, np.asarray(labels, np.int64).reshape(-1), np.asarray(scores, np.float64).reshape(-1))

    def __len__(self) -> int:
        return len(self.labels)

    def usable(self, num_classes: int) -> Detections:
        """Those that are boxes of known classes, with finite numbers: what a broken model says is no detection."""
        good = np.isfinite(self.xyxy).all(1) & np.isfinite(self.scores)
        good &= (self.xyxy[:, 2:] > self.xyxy[:, :2]).all(1) & (self.labels >= 0) & (self.labels < num_classes)
        return Detections(self.xyxy[good], self.labels[good], self.scores[good])


@dataclass
class Faults:
    """What could not be used, or was changed: how often for each reason, and the first few by name.

    Attributes:
        counts: by reason. Of boxes: ``bad_box`` (not four finite numbers), ``zero_area``, ``outside`` (all of it),
            ``clipped`` (kept, cut at the image's edge), ``unknown_class``, ``unknown_image``. Of images:
            ``missing_file``, ``size_mismatch``, ``duplicate_image``, ``bad_image``, ``no_boxes`` and those of
            :class:`radioplat.data.scan.shard.Fault`. ``empty_image`` counts images without objects; they are used.
        named: (reason, what), at most :data:`NAMED` a reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    named: list[tuple[str, str]] = field(default_factory=list)

    def add(self, reason: str, what: str, count: int = 1) -> None:
        """Note ``count`` cases of ``reason`` at ``what``."""
        if count <= 0:
            return
        if self.counts[reason] < NAMED:
            self.named.append((reason, what))
        self.counts[reason] += count

    def __str__(self) -> str:
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts.items())) or "none"

    def with_first(self) -> str:
        """As a string, with the first case of each reason."""
        first = dict(reversed(self.named))
        told = (f"{count} {reason} (first: {first.get(reason, '?')})" for reason, count in sorted(self.counts.items()))
        return ", ".join(told) or "none"


def four_numbers(value: Any) -> list[float] | None:
    """``value`` as four finite floats, or None where it is anything else."""
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        return None
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in value):
        return None
    try:
        numbers = [float(v) for v in value]
    except OverflowError:
        return None
    return numbers if all(abs(v) < 1e9 for v in numbers) else None  # false for NaN too


def clean_boxes(boxes: Boxes, width: int, height: int, faults: Faults, what: str) -> Boxes:
    """Cut ``boxes`` at the edges of an image of ``width x height`` pixels; those without anything inside are left out.

    An area shrinks with its box. What was done is added to ``faults`` under ``what``.
    """
    low, high = boxes.xyxy[:, :2], boxes.xyxy[:, 2:]
    flat = ~_has_area(boxes.xyxy)
    edge = np.array([width, height], np.float64)
    inside = np.hstack([np.clip(low, 0, edge), np.clip(high, 0, edge)])
    gone = ~flat & ~_has_area(inside)
    keep = ~flat & ~gone
    cut = keep & (np.abs(inside - boxes.xyxy).max(1, initial=0) > _NEAR)
    for reason, mask in (("zero_area", flat), ("outside", gone), ("clipped", cut)):
        faults.add(reason, what, int(mask.sum()))
    kept, inside = boxes.take(keep), inside[keep]
    share = np.prod(inside[:, 2:] - inside[:, :2], 1) / np.prod(kept.xyxy[:, 2:] - kept.xyxy[:, :2], 1)
    return Boxes(inside, kept.labels, kept.crowd, kept.area * share)


def _has_area(xyxy: np.ndarray) -> np.ndarray:
    """bool ``[N]``: whether there is anything in a box, by its sides and by their product, which may underflow."""
    sides = xyxy[:, 2:] - xyxy[:, :2]
    return (sides > 0).all(1) & (np.prod(sides, 1) >= _FLAT)
