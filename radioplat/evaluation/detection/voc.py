"""Average precision per class by the rules of Pascal VOC (Everingham et al. 2010, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torchvision.ops import box_iou

from radioplat.data.detection.boxes import Boxes, Detections


def voc_ap(
    truth: Sequence[Boxes],
    found: Sequence[Detections],
    num_classes: int,
    iou: float = 0.5,
    eleven_points: bool = False,
) -> tuple[float | None, ...]:
    """Average precision of each class; None where there is no object of it to find.

    Detections of a class are taken from all images, the surest first. Each is compared with the object that it overlaps
    most: right if that is at least ``iou`` and nobody was right about this object before, else wrong. One whose object
    is a crowd (VOC's ``difficult``) counts as neither. Coordinates are continuous; VOC's own code adds one to each side
    of its whole-number boxes.

    Args:
        truth, found: one entry an image, in the same pixels.
        eleven_points: the mean of the precision at recalls 0, 0.1, ..., 1 (VOC 2007), in place of the area under it
            (since VOC 2010).

    Raises:
        ValueError: another number of images in one than in the other.
    """
    kept = [detections.usable(num_classes) for detections in found]
    average = _eleven_points if eleven_points else _area
    return tuple(_class_ap(list(zip(truth, kept, strict=True)), label, iou, average) for label in range(num_classes))


def mean_ap(by_class: Sequence[float | None]) -> float | None:
    """Over the classes that have objects; None where none has."""
    known = [value for value in by_class if value is not None]
    return sum(known) / len(known) if known else None


def _class_ap(images: list[tuple[Boxes, Detections]], label: int, iou: float, average) -> float | None:
    positives, scores, verdicts = 0, [], []
    for boxes, detections in images:
        objects = boxes.take(boxes.labels == label)
        mine = detections.labels == label
        positives += int((~objects.crowd).sum())
        scores.append(detections.scores[mine])
        verdicts.append(class_verdicts(objects, detections.xyxy[mine], detections.scores[mine], iou))
    if not positives:
        return None
    score, verdict = np.concatenate(scores), np.concatenate(verdicts)
    verdict = verdict[np.argsort(-score, kind="stable")]
    verdict = verdict[verdict >= 0]
    right = np.cumsum(verdict)
    return average(right / positives, right / np.arange(1, len(verdict) + 1))


def class_verdicts(objects: Boxes, xyxy: np.ndarray, scores: np.ndarray, iou: float) -> np.ndarray:
    """int ``[N]`` for the detections of one class in one image: 1 right, 0 wrong, -1 neither."""
    verdict = np.zeros(len(xyxy), np.int64)
    if not len(objects) or not len(xyxy):
        return verdict
    overlap = box_iou(torch.from_numpy(xyxy), torch.from_numpy(objects.xyxy)).numpy()
    best = overlap.argmax(1)
    taken: set[int] = set()
    for i in np.argsort(-scores, kind="stable"):
        target = int(best[i])
        if overlap[i, target] < iou:
            continue
        if objects.crowd[target]:
            verdict[i] = -1
        elif target not in taken:
            taken.add(target)
            verdict[i] = 1
    return verdict


def _area(recall: np.ndarray, precision: np.ndarray) -> float:
    """Under the precision made monotone: at each recall the best that any greater recall has."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0.0) * best).sum())


def _eleven_points(recall: np.ndarray, precision: np.ndarray) -> float:
    points = [precision[recall >= r - 1e-12].max(initial=0.0) for r in np.linspace(0, 1, 11)]
    return float(np.mean(points))
