"""A detector over the images of a split, in their own pixels, and what its boxes are worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch

from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.data.detection.images import DetectionSet, Picture
from radioplat.data.images.decode import MAX_PIXELS, BadSample
from radioplat.data.views.crops import whole_image
from radioplat.data.views.render import reduction, render, view_matrix
from radioplat.evaluation.detection.coco import CocoResult, coco_metrics
from radioplat.evaluation.detection.voc import mean_ap, voc_ap
from radioplat.models.detectors.base import Found

Detect = Callable[[torch.Tensor], list[Found]]  # uint8 [B, 3, H, W] to boxes in its pixels


@dataclass(frozen=True)
class DetectionResult:
    """What a detector is worth on a split.

    Attributes:
        coco: see :class:`CocoResult`.
        voc: average precision of each class by VOC's rules at IoU 0.5.
        classes: their names.
        images: how many were judged.
        unreadable: how many were left out, by reason.
        truth, found: of each image, in its pixels.
        pictures: the images.
    """

    coco: CocoResult
    voc: tuple[float | None, ...]
    classes: tuple[str, ...]
    images: int
    unreadable: dict[str, int] = field(default_factory=dict)
    truth: list[Boxes] = field(default_factory=list, repr=False)
    found: list[Detections] = field(default_factory=list, repr=False)
    pictures: list[Picture] = field(default_factory=list, repr=False)

    def kpi(self) -> dict[str, float]:
        """By name: mAP, mAP50, mAP75, VOC's mean, and mAP of each class; what has no object is left out."""
        values = {
            "mAP": self.coco.map,
            "mAP50": self.coco.map50,
            "mAP75": self.coco.map75,
            "voc/mAP": mean_ap(self.voc),
        }
        values |= {f"mAP/{name}": value for name, value in zip(self.classes, self.coco.by_class, strict=True)}
        values |= {f"voc/AP/{name}": value for name, value in zip(self.classes, self.voc, strict=True)}
        return {name: value for name, value in values.items() if value is not None}


def judge(
    detect: Detect,
    split: DetectionSet,
    size: int,
    batch_size: int,
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
) -> DetectionResult:
    """Show ``detect`` every picture, whole and stretched to ``size`` pixels a side, and measure what it finds.

    An image that proves unreadable is left out and counted.
    """
    truth, found, judged = [], [], list[Picture]()
    unreadable: Counter[str] = Counter()
    for pictures, pixels in _batches(split.pictures, size, batch_size, threads, max_pixels, unreadable):
        for picture, boxes in zip(pictures, detect(torch.from_numpy(pixels)), strict=True):
            back = np.array([picture.width, picture.height] * 2) / size
            found.append(
                Detections.of(boxes.xyxy.cpu().numpy() * back, boxes.labels.cpu().numpy(), boxes.scores.cpu().numpy())
            )
            truth.append(picture.boxes)
            judged.append(picture)
    count = len(split.classes)
    coco, voc = coco_metrics(truth, found, count), voc_ap(truth, found, count)
    return DetectionResult(coco, voc, split.classes, len(truth), dict(unreadable), truth, found, judged)


def look_at(picture: Picture, size: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """A picture as a detector sees it: uint8 ``[3, size, size]``.

    Raises:
        BadSample: it cannot be decoded.
    """
    matrix = view_matrix(whole_image(picture.width, picture.height).matrix(), size)
    try:
        image = picture.decode(float(reduction(matrix, size)), max_pixels)
    except OSError as error:
        raise BadSample("missing_file", str(error)) from None
    return render(image, matrix, size)[0].transpose(2, 0, 1)


def _batches(
    pictures: Sequence[Picture],
    size: int,
    batch_size: int,
    threads: int,
    max_pixels: int,
    unreadable: Counter[str],
) -> Iterator[tuple[list[Picture], np.ndarray]]:
    def read(picture: Picture) -> np.ndarray | str:
        """Its pixels, or why there are none."""
        try:
            return look_at(picture, size, max_pixels)
        except BadSample as bad:
            return bad.reason

    with ThreadPoolExecutor(max(1, threads)) as pool:
        rest = iter(pictures)
        while mine := list(islice(rest, batch_size)):
            seen = list(zip(mine, pool.map(read, mine), strict=True))
            unreadable.update(pixels for _, pixels in seen if isinstance(pixels, str))
            kept = [(picture, pixels) for picture, pixels in seen if not isinstance(pixels, str)]
            if kept:
                yield [picture for picture, _ in kept], np.stack([pixels for _, pixels in kept])
