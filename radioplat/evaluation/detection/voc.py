"""Average precision per class by the rules of Pascal VOC (Everingham et al. 2010, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torchvision.ops import box_iou

from radioplat.common.ranks import ALONE, Ranks
from radioplat.data.detection.boxes import Boxes, Detections


def voc_ap(
    truth: Sequence[Boxes], detections: Sequence[Detections], num_classes: int, iou: float = 0.5, ranks: Ranks = ALONE
) -> tuple[float | None, ...]:
    """Compute the average precision of each class; None for a class without objects.

    Detections of a class are ranked by score over all images. Each is compared with the object that it overlaps most:
    correct if the IoU is at least ``iou`` and no earlier detection matched this object, else wrong. A detection on a
    crowd (VOC's ``difficult``) is ignored. Coordinates are continuous; VOC's own code adds one to each side of its
    integer boxes.

    Args:
        truth, detections: one entry an image, in the same pixels; the same on all ranks.
        ranks: each computes its share of the classes, and gets all.

    Raises:
        ValueError: ``truth`` and ``detections`` have different lengths.
    """
    images = list(zip(truth, (each.usable(num_classes) for each in detections), strict=True))
    own = {int(label): _class_ap(images, label, iou) for label in ranks.share(num_classes)}
    by_class = {label: value for part in ranks.objects(own) for label, value in part.items()}
    return tuple(by_class[label] for label in range(num_classes))


def mean_ap(by_class: Sequence[float | None]) -> float | None:
    """Return the mean over the classes that have objects; None if no class has any."""
    known = [value for value in by_class if value is not None]
    return sum(known) / len(known) if known else None


def _class_ap(images: list[tuple[Boxes, Detections]], label: int, iou: float) -> float | None:
    positives, scores, matches = 0, [], []
    for boxes, detections in images:
        objects = boxes.take(boxes.labels == label)
        of_class = detections.labels == label
        positives += int((~objects.crowd).sum())
        scores.append(detections.scores[of_class])
        matches.append(match_class(objects, detections.xyxy[of_class], detections.scores[of_class], iou))
    if not positives:
        return None
    match = np.concatenate(matches)[np.argsort(-np.concatenate(scores), kind="stable")]
    match = match[match >= 0]
    correct = np.cumsum(match)
    return _area(correct / positives, correct / np.arange(1, len(match) + 1))


def match_class(objects: Boxes, xyxy: np.ndarray, scores: np.ndarray, iou: float) -> np.ndarray:
    """Match the detections of one class in one image: int ``[N]``, 1 correct, 0 wrong, -1 on a crowd."""
    match = np.zeros(len(xyxy), np.int64)
    if not len(objects) or not len(xyxy):
        return match
    overlap = box_iou(torch.from_numpy(xyxy), torch.from_numpy(objects.xyxy)).numpy()
    best = overlap.argmax(1)
    matched: set[int] = set()
    for i in np.argsort(-scores, kind="stable"):
        target = int(best[i])
        if overlap[i, target] < iou:
            continue
        if objects.crowd[target]:
            match[i] = -1
        elif target not in matched:
            matched.add(target)
            match[i] = 1
    return match


def _area(recall: np.ndarray, precision: np.ndarray) -> float:
    """Compute the area under the precision-recall curve, with precision the maximum at any higher or equal recall."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0.0) * best).sum())
