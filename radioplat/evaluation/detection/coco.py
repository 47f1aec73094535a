"""COCO's detection metrics, computed by pycocotools from arrays in memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radioplat.common.ranks import ALONE, Ranks
from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.errors import SpecError


@dataclass(frozen=True)
class CocoResult:
    """COCO's metrics (cocodataset.org, Detection Evaluation); None if there are no objects for a metric.

    Attributes:
        map, map50, map75: average precision, mean over classes; at IoU 0.50 to 0.95, at 0.50, at 0.75.
        small, medium, large: ``map`` of objects below 32^2, up to 96^2, and above, in pixels of area.
        recall: mean over classes and IoU 0.50 to 0.95, with the 100 detections of highest score per class and image.
        by_class, by_class50: average precision of each class.
        unusable: detections that were left out: not finite, without area, or of an unknown class.
    """

    map: float | None
    map50: float | None
    map75: float | None
    small: float | None
    medium: float | None
    large: float | None
    recall: float | None
    by_class: tuple[float | None, ...]
    by_class50: tuple[float | None, ...]
    unusable: int = 0


def coco_metrics(
    truth: Sequence[Boxes], detections: Sequence[Detections], num_classes: int, ranks: Ranks = ALONE
) -> CocoResult:
    """Compare the ``detections`` of each image with its ``truth``; crowds are ignored.

    Args:
        truth, detections: one entry an image, in the same pixels; the same on all ranks.
        num_classes: labels are below it.
        ranks: each computes its share of the classes, which do not depend on each other, and gets all.

    Raises:
        SpecError: pycocotools is not installed.
        ValueError: ``truth`` and ``detections`` have different lengths.
    """
    usable = [each.usable(num_classes) for each in detections]
    unusable = sum(map(len, detections)) - sum(map(len, usable))
    own = ranks.share(num_classes).tolist()
    curves = ranks.alike(lambda: _evaluate(_ground_truth(truth, own), _results(truth, usable, own)))
    precision, recall = (
        ranks.in_turn(torch.from_numpy(curve).movedim(-2, 0).contiguous()).movedim(0, -2).numpy() for curve in curves
    )
    of_all = precision[:, :, :, 0]  # thresholds, recalls, classes
    classes = range(num_classes)
    return CocoResult(
        map=_mean(of_all),
        map50=_mean(of_all[0]),
        map75=_mean(of_all[5]),
        small=_mean(precision[..., 1]),
        medium=_mean(precision[..., 2]),
        large=_mean(precision[..., 3]),
        recall=_mean(recall[:, :, 0]),
        by_class=tuple(_mean(of_all[:, :, c]) for c in classes),
        by_class50=tuple(_mean(of_all[0, :, c]) for c in classes),
        unusable=unusable,
    )


def _ground_truth(truth: Sequence[Boxes], classes: Sequence[int]) -> dict:
    """Return the objects of ``classes`` as pycocotools reads them."""
    annotations: list[dict[str, Any]] = []
    for i, all_boxes in enumerate(truth):
        boxes = all_boxes.take(np.isin(all_boxes.labels, classes))
        for (x0, y0, x1, y1), label, crowd, area in zip(
            boxes.xyxy.tolist(), boxes.labels.tolist(), boxes.crowd.tolist(), boxes.area.tolist(), strict=True
        ):
            # Ids start at 1: pycocotools treats a match with object 0 as no match.
            note = {"id": len(annotations) + 1, "image_id": i, "category_id": label, "bbox": [x0, y0, x1 - x0, y1 - y0]}
            annotations.append(note | {"iscrowd": int(crowd), "area": area})
    categories = [{"id": c, "name": str(c)} for c in classes]
    return {"images": [{"id": i} for i in range(len(truth))], "annotations": annotations, "categories": categories}


def _results(truth: Sequence[Boxes], detections: Sequence[Detections], classes: Sequence[int]) -> list[dict]:
    """Return the detections of ``classes`` as pycocotools reads them."""
    kept = (each.take(np.isin(each.labels, classes)) for each in detections)
    return [
        {"image_id": i, "category_id": label, "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score}
        for i, (_, each) in enumerate(zip(truth, kept, strict=True))
        for (x0, y0, x1, y1), label, score in zip(
            each.xyxy.tolist(), each.labels.tolist(), each.scores.tolist(), strict=True
        )
    ]


def load_coco() -> tuple[Any, Any]:
    """Import pycocotools' ``COCO`` and ``COCOeval``.

    Raises:
        SpecError: it is not installed.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        hint = "pip install 'radioplat[detect]'"
        raise SpecError("COCO's measures need pycocotools", where="evaluate", hint=hint) from None
    return COCO, COCOeval


def _evaluate(truth: dict, results: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Return precision ``[thresholds, recalls, classes, sizes]`` and recall ``[thresholds, classes, sizes]``.

    Both are -1 where there is no object.
    """
    COCO, COCOeval = load_coco()  # noqa: N806
    if not truth["categories"] or not truth["images"]:
        classes = len(truth["categories"])
        return -np.ones((10, 101, classes, 4)), -np.ones((10, classes, 4))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        known, none = COCO(), COCO()
        known.dataset, none.dataset = truth, truth | {"annotations": []}
        for index in (known, none):
            index.createIndex()
        guesses = known.loadRes(results) if results else none  # loadRes reads the first of them
        evaluation = COCOeval(known, guesses, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"][..., -1], evaluation.eval["recall"][..., -1]


def _mean(values: np.ndarray) -> float | None:
    known = values[values > -1]
    return float(known.mean()) if known.size else None
