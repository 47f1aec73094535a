"""Pictures of an inference: boxes, classes, and features by their principal components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw

from radioplat.data.detection.boxes import Detections
from radioplat.data.loading.image_files import ImageView
from radioplat.evaluation.inference.infer import Prediction
from radioplat.evaluation.pictures.boxes_panel import SIDE, draw_boxes, write_text
from radioplat.evaluation.pictures.pca import panel, pca_panel

_COLOUR = (60, 220, 90)


def predictions_panel(shown: Sequence[tuple[ImageView, Prediction]], threshold: float) -> bytes:
    """Return a PNG with one row per image.

    Boxes with a score of at least ``threshold`` are drawn; a classifier's first class is written on its image; of a
    student there is a second column, the spatial features by three principal components.

    Args:
        shown: images that could be read.
    """
    images = np.stack([_drawn(*each, threshold) for each in shown])
    maps = [row.spatial for _, row in shown if row.spatial is not None]
    if not maps:
        return panel({"boxes": images}, photographs=("boxes",))
    return pca_panel(images.transpose(0, 3, 1, 2), {"features": torch.from_numpy(np.stack(maps))})


def _drawn(view: ImageView, row: Prediction, threshold: float) -> np.ndarray:
    assert view.pixels is not None
    image = Image.fromarray(np.ascontiguousarray(view.pixels.transpose(1, 2, 0))).resize((SIDE, SIDE))
    if row.labels is None or row.scores is None:
        return np.asarray(image)
    texts = [f"{row.shown_class(i)} {100 * row.scores[i]:.0f}" for i in range(len(row.labels))]
    if row.boxes is None:
        write_text(ImageDraw.Draw(image), (2, 0), texts[0], _COLOUR)
        return np.asarray(image)
    sure = [i for i in range(len(texts)) if row.scores[i] >= threshold and np.isfinite(row.boxes[i]).all()]
    chosen = Detections.of(row.boxes[sure], row.labels[sure], row.scores[sure])
    return draw_boxes(
        np.asarray(image), row.width, row.height, chosen.xyxy, [texts[i] for i in sure], [_COLOUR] * len(sure)
    )
