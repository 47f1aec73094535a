"""Features, classes or boxes of images, batch by batch: the task ``inference`` and the Python API call it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radioplat.data.images.decode import MAX_PIXELS
from radioplat.data.loading.image_files import ImageFile, ImageView, view_batches
from radioplat.errors import SpecError
from radioplat.evaluation.inference.inference_model import InferenceModel
from radioplat.models.detectors.base import Found
from radioplat.models.features import Features


@dataclass(frozen=True)
class Prediction:
    """The result for one image; a field that its model does not compute is None.

    Attributes:
        name: the path below the folder, the given path, or the position of an array.
        width, height: of the image, in pixels, EXIF orientation applied; 0 if it cannot be read.
        error: why the image cannot be read; empty for one that was read.
        summary: float32 ``[D]``, of a student.
        spatial: float32 ``[h, w, D]``, of a student.
        boxes: float32 ``[K, 4]``, of a detector: left, top, right, bottom in pixels of the image.
        labels: int64 ``[K]``, classes of the boxes, or of the image, by descending score.
        scores: float32 ``[K]``: of boxes the sigmoid, of an image's classes the softmax over all classes.
        class_names: of ``labels``; empty if the names are unknown.
    """

    name: str
    width: int = 0
    height: int = 0
    error: str = ""
    summary: np.ndarray | None = None
    spatial: np.ndarray | None = None
    boxes: np.ndarray | None = None
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    class_names: tuple[str, ...] = ()

    def shown_class(self, i: int) -> str:
        """Return the name of ``labels[i]``; the number if names are unknown."""
        assert self.labels is not None
        return self.class_names[i] if self.class_names else str(int(self.labels[i]))


def infer(
    model: InferenceModel,
    images: Sequence[ImageFile],
    batch_size: int,
    *,
    top_k: int = 5,
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
) -> Iterator[list[tuple[ImageView, Prediction]]]:
    """Yield view and result of each image, in batches, in the order of ``images``.

    Views are those of an evaluation: the centre crop for a student, the whole image for a detector.

    Args:
        top_k: classes of a classifier for each image.

    Raises:
        RadioplatError: the model fails, or has another number of classes than names.
    """
    whole = model.detect is not None
    for views in view_batches(images, model.size, batch_size, whole=whole, threads=threads, max_pixels=max_pixels):
        read = [view for view in views if view.pixels is not None]
        results = iter(_predictions(model, read, top_k) if read else ())
        yield [
            (view, next(results) if view.pixels is not None else Prediction(view.image.name, error=view.error))
            for view in views
        ]


def _predictions(model: InferenceModel, views: Sequence[ImageView], top_k: int) -> Iterator[Prediction]:
    pixels = torch.from_numpy(np.stack([view.pixels for view in views if view.pixels is not None]))
    if model.encode is not None:
        yield from _encoded(model, model.encode(pixels), views, top_k)
    if model.detect is not None:
        yield from _detected(model, model.detect(pixels), views)


def _encoded(model: InferenceModel, features: Features, views: Sequence[ImageView], top_k: int) -> Iterator[Prediction]:
    summary, spatial = (features.of(kind).cpu().numpy() for kind in ("summary", "spatial"))
    labels = scores = None
    if model.classifies:
        logits = features.named["logits"]
        if model.class_names and len(model.class_names) != logits.shape[1]:
            message = f"{len(model.class_names)} classes are named, and the model has {logits.shape[1]}"
            raise SpecError(message, where="dataset.classes")
        best = logits.softmax(1).topk(min(top_k, logits.shape[1]))
        scores, labels = best.values.cpu().numpy(), best.indices.cpu().numpy()
    for i, view in enumerate(views):
        yield Prediction(
            name=view.image.name,
            width=view.width,
            height=view.height,
            summary=summary[i],
            spatial=spatial[i],
            labels=None if labels is None else labels[i],
            scores=None if scores is None else scores[i],
            class_names=_names(model, () if labels is None else labels[i]),
        )


def _detected(model: InferenceModel, detections: Sequence[Found], views: Sequence[ImageView]) -> Iterator[Prediction]:
    for view, objects in zip(views, detections, strict=True):
        scale = np.array([view.width, view.height] * 2) / model.size
        labels = objects.labels.cpu().numpy()
        yield Prediction(
            name=view.image.name,
            width=view.width,
            height=view.height,
            boxes=(objects.xyxy.cpu().numpy() * scale).astype(np.float32),
            labels=labels,
            scores=objects.scores.cpu().numpy(),
            class_names=_names(model, labels),
        )


def _names(model: InferenceModel, labels: Sequence[int] | np.ndarray) -> tuple[str, ...]:
    names = model.class_names  # a detector may have more classes than categories with a name
    return tuple(names[label] if label < len(names) else str(label) for label in labels) if names else ()
