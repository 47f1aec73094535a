"""Evaluation of a detector on the images of a split, in their own pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.common.out_of_memory import names_memory
from radioplat.common.ranks import ALONE, Ranks
from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.data.detection.detection_set import DetectionSet, Picture
from radioplat.data.detection.split import read_split
from radioplat.data.images.decode import MAX_PIXELS, BadSample
from radioplat.data.views.crops import whole_image
from radioplat.data.views.render import reduction, render, view_matrix
from radioplat.evaluation.detection.coco import CocoResult, coco_metrics
from radioplat.evaluation.detection.voc import mean_ap, voc_ap
from radioplat.models.detectors.base import Found
from radioplat.models.detectors.checkpoint import DETECTOR
from radioplat.models.weights.load_together import load_together
from radioplat.spec.schema.root import Spec

Detect = Callable[[torch.Tensor], list[Found]]  # uint8 [B, 3, H, W] to boxes in its pixels


@dataclass(frozen=True)
class DetectionResult:
    """Metrics of a detector on a split.

    Attributes:
        coco: see :class:`CocoResult`.
        voc: average precision of each class by VOC's rules at IoU 0.5.
        classes: their names.
        images: number of images that were evaluated.
        unreadable: number of images that could not be decoded, by reason.
        truth, detections: true and detected boxes of each image, in its pixels.
        pictures: the images.
    """

    coco: CocoResult
    voc: tuple[float | None, ...]
    classes: tuple[str, ...]
    images: int
    unreadable: dict[str, int] = field(default_factory=dict)
    truth: list[Boxes] = field(default_factory=list, repr=False)
    detections: list[Detections] = field(default_factory=list, repr=False)
    pictures: list[Picture] = field(default_factory=list, repr=False)

    def kpi(self) -> dict[str, float]:
        """Return mAP, mAP50, mAP75, VOC's mAP, and both APs of each class, by name, if there are objects for them."""
        values = {
            "mAP": self.coco.map,
            "mAP50": self.coco.map50,
            "mAP75": self.coco.map75,
            "voc/mAP": mean_ap(self.voc),
        }
        values |= {f"mAP/{name}": value for name, value in zip(self.classes, self.coco.by_class, strict=True)}
        values |= {f"voc/AP/{name}": value for name, value in zip(self.classes, self.voc, strict=True)}
        return {name: value for name, value in values.items() if value is not None}


def measure_detector(
    detect: Detect,
    split: DetectionSet,
    size: int,
    batch_size: int,
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
    ranks: Ranks = ALONE,
) -> DetectionResult:
    """Run ``detect`` on each picture, resized to ``size`` x ``size`` pixels, and compare its boxes with the true ones.

    Images that cannot be decoded are left out and counted.

    Args:
        split: the same on all ranks.
        ranks: each takes its share of the pictures and of the classes, and has the result of all.

    Raises:
        RadioplatError, OSError: on every rank, if one of them raised it.
    """
    unreadable: Counter[str] = Counter()
    own = [(int(i), split.pictures[i]) for i in ranks.share(len(split.pictures), batch_size)]

    def detect_own() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return position and number of boxes of each readable picture, and the boxes, a tensor for each picture."""
        places, boxes = [], []
        for batch, pixels in _batches(own, size, batch_size, threads, max_pixels, unreadable):
            results = detect(torch.from_numpy(pixels))
            # One copy from the device for a batch. Labels and scores are exact in float64.
            packed = torch.cat([torch.column_stack([part.double() for part in result]) for result in results]).cpu()
            counts = [len(result.labels) for result in results]
            places += [torch.tensor([i, n]) for (i, _), n in zip(batch, counts, strict=True)]
            boxes += packed.split(counts)
        return places, boxes

    places, boxes = ranks.alike(names_memory("dataset.val_batch_size")(detect_own))
    table = ranks.rows(torch.stack(places) if places else torch.zeros(0, 2, dtype=torch.int64))
    arrays = ranks.rows(torch.cat(boxes) if boxes else torch.zeros(0, 6, dtype=torch.float64))
    by_place = {int(i): part.numpy() for i, part in zip(table[:, 0], arrays.split(table[:, 1].tolist()), strict=True)}
    pictures = [split.pictures[i] for i in sorted(by_place)]
    truth, detections = [picture.boxes for picture in pictures], list[Detections]()
    for i, picture in zip(sorted(by_place), pictures, strict=True):
        scale = np.array([picture.width, picture.height] * 2) / size
        detections.append(Detections.of(by_place[i][:, :4] * scale, by_place[i][:, 4], by_place[i][:, 5]))
    count, of_all = len(split.classes), sum(ranks.objects(unreadable), Counter[str]())
    coco, voc = coco_metrics(truth, detections, count, ranks), voc_ap(truth, detections, count, ranks=ranks)
    return DetectionResult(coco, voc, split.classes, len(truth), dict(of_all), truth, detections, pictures)


def measure_checkpoint(
    spec: Spec, checkpoint: Path, ema: bool | None = None, ranks: Ranks = ALONE
) -> tuple[DetectionResult, str]:
    """Evaluate the detector of ``checkpoint`` on ``dataset.val_dataset``; return also the faults of its annotations.

    Every one of ``ranks`` must call it; rank 0 reads the checkpoint and the annotations for all.

    Raises:
        DataError: the split cannot be read, or has other classes than the detector.
        WeightsError: the checkpoint cannot be read.
    """
    detector = load_together(ranks, DETECTOR, checkpoint, "evaluate.checkpoint", ema).to(ranks.device)
    form, dataset = detector.architecture, spec.dataset
    names = form.class_names or dataset.classes
    split = ranks.from_first(lambda: read_split(dataset.val_dataset, names, "dataset.val_dataset"))
    if spec.evaluate.max_images is not None:
        split = replace(split, pictures=split.pictures[: spec.evaluate.max_images])
    size = dataset.val_img_size or form.student.img_size
    batch = spec.evaluate.batch_size or dataset.val_batch_size or dataset.batch_size
    threads = decode_threads(dataset.workers)
    with limit_torch_threads(threads):
        result = measure_detector(
            lambda images: detector.detect(images.to(ranks.device)), split, size, batch, threads, dataset.max_pixels,
            ranks,
        )  # fmt: skip
    return result, str(split.faults)


def look_at(picture: Picture, size: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode a picture and resize it, ignoring its aspect ratio, to a detector's input: uint8 ``[3, size, size]``.

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
    pictures: Sequence[tuple[int, Picture]],
    size: int,
    batch_size: int,
    threads: int,
    max_pixels: int,
    unreadable: Counter[str],
) -> Iterator[tuple[list[tuple[int, Picture]], np.ndarray]]:
    """Yield batches of the readable ones of numbered ``pictures``, with their pixels; count the others."""

    def read(numbered: tuple[int, Picture]) -> np.ndarray | str:
        """Return the image's pixels, or the reason why it cannot be decoded."""
        try:
            return look_at(numbered[1], size, max_pixels)
        except BadSample as bad:
            return bad.reason

    with ThreadPoolExecutor(max(1, threads)) as pool:
        rest = iter(pictures)
        while batch := list(islice(rest, batch_size)):
            results = list(zip(batch, pool.map(read, batch), strict=True))
            unreadable.update(pixels for _, pixels in results if isinstance(pixels, str))
            readable = [(picture, pixels) for picture, pixels in results if not isinstance(pixels, str)]
            if readable:
                yield [picture for picture, _ in readable], np.stack([pixels for _, pixels in readable])
