"""Correct, wrong and missed boxes of a detector at a score threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.evaluation.detection.voc import match_class

IOU = 0.5


@dataclass(frozen=True)
class DetectionErrors:
    """Matches of all boxes detected on a split, by VOC's rules at IoU 0.5; those on crowds are left out.

    Attributes:
        scores: ``[N]``.
        right: bool ``[N]``, whether a box matches an object.
        objects: number of true objects.
    """

    scores: np.ndarray
    right: np.ndarray
    objects: int

    def best_threshold(self) -> float:
        """Return the score threshold with the highest F1, ``2 right / (boxes + objects)``."""
        if not self.right.any():
            return 0.5
        order = np.argsort(-self.scores, kind="stable")
        right = np.cumsum(self.right[order])
        f1 = 2 * right / (np.arange(1, len(order) + 1) + self.objects)
        return float(self.scores[order][f1.argmax()])

    def counts(self, threshold: float) -> tuple[int, int, int]:
        """Count correct boxes, wrong boxes and missed objects at a score of at least ``threshold``."""
        above = self.right[self.scores >= threshold]
        right = int(above.sum())
        return right, len(above) - right, self.objects - right


def detection_errors(truth: Sequence[Boxes], detections: Sequence[Detections], num_classes: int) -> DetectionErrors:
    """Match the ``detections`` of each image with its ``truth``."""
    usable = [each.usable(num_classes) for each in detections]
    matches = [match_image(boxes, each) for boxes, each in zip(truth, usable, strict=True)]
    scores = np.concatenate([np.empty(0), *(each.scores for each in usable)])
    match = np.concatenate([np.empty(0, np.int64), *matches])
    objects = sum(int((~boxes.crowd).sum()) for boxes in truth)
    return DetectionErrors(scores[match >= 0], match[match >= 0] > 0, objects)


def match_image(boxes: Boxes, detections: Detections) -> np.ndarray:
    """Match the detections in one image: int ``[N]``, 1 correct, 0 wrong, -1 on a crowd."""
    match = np.zeros(len(detections), np.int64)
    for label in np.unique(detections.labels):
        of_class = detections.labels == label
        objects = boxes.take(boxes.labels == label)
        match[of_class] = match_class(objects, detections.xyxy[of_class], detections.scores[of_class], IOU)
    return match
