"""Bounding boxes of the objects in one image, detections of a model, and counts of unusable annotations.

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
_NEAR = 1e-3  # pixels; tolerance for rounding in an annotation file
_FLAT = np.finfo(np.float64).tiny  # square pixels; the product of two tiny sides may underflow to 0


@dataclass(frozen=True)
class Boxes:
    """The objects of one image.

    Attributes:
        xyxy: float64 ``[N, 4]``, left, top, right, bottom in pixels.
        labels: int64 ``[N]``, classes from 0.
        crowd: bool ``[N]``, True where the box encloses many objects (COCO's ``iscrowd``): it is ignored in training,
            and a detection inside it counts neither as true nor as false positive.
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
        """Convert plain numbers; without ``crowd`` no box is a crowd, without ``area`` it is width times height."""
        corners = np.asarray(xyxy, np.float64).reshape(-1, 4)
        box_area = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        return cls(
            corners,
            np.asarray(labels, np.int64).reshape(-1),
            np.zeros(len(corners), bool) if crowd is None else np.asarray(crowd, bool).reshape(-1),
            box_area if area is None else np.asarray(area, np.float64).reshape(-1),
        )

    @classmethod
    def none(cls) -> Boxes:
        """Return the boxes of an image without objects."""
        return cls.of([], [])

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, keep: np.ndarray) -> Boxes:
        """Select boxes by ``keep``, a mask or indices."""
        return Boxes(self.xyxy[keep], self.labels[keep], self.crowd[keep], self.area[keep])

    def normalized(self, width: float, height: float) -> np.ndarray:
        """Return DETR's form, float32 ``[N, 4]``: centre x, centre y, width, height as fractions of the image."""
        low, high = self.xyxy[:, :2], self.xyxy[:, 2:]
        return (np.hstack([(low + high) / 2, high - low]) / (width, height, width, height)).astype(np.float32)


@dataclass(frozen=True)
class Detections:
    """Objects that a detector predicts in one image.

    Attributes:
        xyxy: float ``[N, 4]``, left, top, right, bottom in pixels.
        labels: int ``[N]``, classes from 0.
        scores: float ``[N]``, confidences; higher is more certain.
    """

    xyxy: np.ndarray
    labels: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, xyxy: Any, labels: Any, scores: Any) -> Detections:
        """Convert arrays or lists of numbers."""
        corners = np.asarray(xyxy, np.float64).reshape(-1, 4)
        return cls(corners, np.asarray(labels, np.int64).reshape(-1), np.asarray(scores, np.float64).reshape(-1))

    def __len__(self) -> int:
        return len(self.labels)

    def usable(self, num_classes: int) -> Detections:
        """Drop detections with a number that is not finite, an empty box, or a class outside ``num_classes``."""
        good = np.isfinite(self.xyxy).all(1) & np.isfinite(self.scores)
        good &= (self.xyxy[:, 2:] > self.xyxy[:, :2]).all(1) & (self.labels >= 0) & (self.labels < num_classes)
        return self.take(good)

    def take(self, keep: np.ndarray) -> Detections:
        """Select detections by ``keep``, a mask or indices."""
        return Detections(self.xyxy[keep], self.labels[keep], self.scores[keep])


@dataclass
class Faults:
    """Unusable or changed images and boxes: a count for each reason, and the first few examples.

    Attributes:
        counts: by reason. Of boxes: ``bad_box`` (not four finite numbers), ``zero_area``, ``outside`` (entirely),
            ``clipped`` (kept, cut at the image's edge), ``unknown_class``, ``unknown_image``. Of images:
            ``missing_file``, ``size_mismatch``, ``duplicate_image``, ``bad_image``, ``no_boxes`` and those of
            :class:`radioplat.data.scan.tables.Fault`. ``empty_image`` counts images without objects; they are used.
        named: (reason, item) examples, at most :data:`NAMED` of a reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    named: list[tuple[str, str]] = field(default_factory=list)

    def add(self, reason: str, item: str, count: int = 1) -> None:
        """Count ``count`` faults of kind ``reason`` in the image or box named ``item``."""
        if count <= 0:
            return
        if self.counts[reason] < NAMED:
            self.named.append((reason, item))
        self.counts[reason] += count

    def __str__(self) -> str:
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts.items())) or "none"

    def with_first(self) -> str:
        """Format the counts, with the first example of each reason."""
        first = dict(reversed(self.named))
        parts = (f"{count} {reason} (first: {first.get(reason, '?')})" for reason, count in sorted(self.counts.items()))
        return ", ".join(parts) or "none"


def four_numbers(value: Any) -> list[float] | None:
    """Return ``value`` as four finite floats, or None if it is anything else."""
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        return None
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in value):
        return None
    try:
        numbers = [float(v) for v in value]
    except OverflowError:
        return None
    return numbers if all(abs(v) < 1e9 for v in numbers) else None  # false for NaN too


def clean_boxes(boxes: Boxes, width: int, height: int, faults: Faults, item: str) -> Boxes:
    """Clip ``boxes`` to an image of ``width x height`` pixels and drop those without area inside it.

    The area of a clipped box shrinks in proportion. Changes are counted in ``faults`` with the image's name, ``item``.
    """
    low, high = boxes.xyxy[:, :2], boxes.xyxy[:, 2:]
    flat = ~_has_area(boxes.xyxy)
    edge = np.array([width, height], np.float64)
    inside = np.hstack([np.clip(low, 0, edge), np.clip(high, 0, edge)])
    outside = ~flat & ~_has_area(inside)
    keep = ~flat & ~outside
    clipped = keep & (np.abs(inside - boxes.xyxy).max(1, initial=0) > _NEAR)
    for reason, mask in (("zero_area", flat), ("outside", outside), ("clipped", clipped)):
        faults.add(reason, item, int(mask.sum()))
    kept, inside = boxes.take(keep), inside[keep]
    share = np.prod(inside[:, 2:] - inside[:, :2], 1) / np.prod(kept.xyxy[:, 2:] - kept.xyxy[:, :2], 1)
    return Boxes(inside, kept.labels, kept.crowd, kept.area * share)


def _has_area(xyxy: np.ndarray) -> np.ndarray:
    """Return bool ``[N]``: True where both sides of a box and their product, which may underflow, are positive."""
    sides = xyxy[:, 2:] - xyxy[:, :2]
    return (sides > 0).all(1) & (np.prod(sides, 1) >= _FLAT)
