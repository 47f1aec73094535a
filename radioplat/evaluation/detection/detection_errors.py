"""Which boxes of a detector are right, and how many are wrong or missing where it must decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.evaluation.detection.voc import class_verdicts

IOU = 0.5


@dataclass(frozen=True)
class Verdicts:
    """Of all boxes that were found on a split, by VOC's rules at IoU 0.5; those on crowds are left out.

    Attributes:
        scores: ``[N]``.
        right: bool ``[N]``.
        objects: how many there are to find.
    """

    scores: np.ndarray
    right: np.ndarray
    objects: int

    def best_threshold(self) -> float:
        """The score from which boxes are taken so that F1, ``2 right / (taken + objects)``, is highest."""
        if not self.right.any():
            return 0.5
        order = np.argsort(-self.scores, kind="stable")
        right = np.cumsum(self.right[order])
        f1 = 2 * right / (np.arange(1, len(order) + 1) + self.objects)
        return float(self.scores[order][f1.argmax()])

    def counts(self, threshold: float) -> tuple[int, int, int]:
        """How many boxes with at least this score are right, how many spurious, and how many objects are missed."""
        taken = self.right[self.scores >= threshold]
        right = int(taken.sum())
        return right, len(taken) - right, self.objects - right


def verdicts(truth: Sequence[Boxes], found: Sequence[Detections], num_classes: int) -> Verdicts:
    """Of what was ``found`` in each image, beside its ``truth``."""
    usable = [detections.usable(num_classes) for detections in found]
    each = [image_verdicts(boxes, mine) for boxes, mine in zip(truth, usable, strict=True)]
    scores = np.concatenate([np.empty(0), *(d.scores for d in usable)])
    verdict = np.concatenate([np.empty(0, np.int64), *each])
    objects = sum(int((~boxes.crowd).sum()) for boxes in truth)
    return Verdicts(scores[verdict >= 0], verdict[verdict >= 0] > 0, objects)


def image_verdicts(boxes: Boxes, found: Detections) -> np.ndarray:
    """int ``[N]`` of the detections in one image: 1 right, 0 wrong, -1 on a crowd."""
    verdict = np.zeros(len(found), np.int64)
    for label in np.unique(found.labels):
        mine = found.labels == label
        objects = boxes.take(boxes.labels == label)
        verdict[mine] = class_verdicts(objects, found.xyxy[mine], found.scores[mine], IOU)
    return verdict
