"""Images with the true boxes and those of each detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw

from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.data.detection.detection_set import Picture
from radioplat.evaluation.detection.detection_errors import match_image
from radioplat.evaluation.detection.measure_detector import look_at
from radioplat.evaluation.pictures.pca import panel

SIDE = 288  # pixels of an image in the picture
_TRUE, _RIGHT, _WRONG, _CROWD = (90, 200, 255), (60, 220, 90), (255, 60, 60), (200, 200, 200)


def boxes_panel(
    pictures: Sequence[Picture],
    detections: Mapping[str, Sequence[Detections]],
    classes: Sequence[str],
    threshold: float,
    max_pixels: int,
) -> bytes:
    """Return a PNG with one row per image: the true boxes (blue), then one column per model with its boxes.

    Boxes with a score of at least ``threshold`` are drawn, green if they are right and red if they are wrong. Images
    are resized to squares.

    Args:
        detections: for each model the detections in each picture, in its pixels.

    Raises:
        BadSample: a picture cannot be decoded.
    """
    shown = [look_at(picture, SIDE, max_pixels).transpose(1, 2, 0) for picture in pictures]
    columns = {"truth": [_with_truth(*each, classes) for each in zip(shown, pictures, strict=True)]}
    for name, of_model in detections.items():
        columns[name] = [
            _with_detections(pixels, picture, each, classes, threshold)
            for pixels, picture, each in zip(shown, pictures, of_model, strict=True)
        ]
    return panel({name: np.stack(cells) for name, cells in columns.items()}, photographs=set(columns))


def _with_truth(pixels: np.ndarray, picture: Picture, classes: Sequence[str]) -> np.ndarray:
    boxes: Boxes = picture.boxes
    colours = [_CROWD if crowd else _TRUE for crowd in boxes.crowd]
    names = [classes[label] for label in boxes.labels]
    return draw_boxes(pixels, picture.width, picture.height, boxes.xyxy, names, colours)


def _with_detections(
    pixels: np.ndarray, picture: Picture, detections: Detections, classes: Sequence[str], threshold: float
) -> np.ndarray:
    usable = detections.usable(len(classes))
    sure = usable.scores >= threshold
    match = match_image(picture.boxes, usable)[sure]
    colours = [{1: _RIGHT, 0: _WRONG, -1: _CROWD}[int(m)] for m in match]
    labelled = zip(usable.labels[sure], usable.scores[sure], strict=True)
    texts = [f"{classes[c]} {100 * s:.0f}" for c, s in labelled]
    return draw_boxes(pixels, picture.width, picture.height, usable.xyxy[sure], texts, colours)


def draw_boxes(
    pixels: np.ndarray,
    width: int,
    height: int,
    xyxy: np.ndarray,
    texts: Sequence[str],
    colours: Sequence[tuple[int, ...]],
) -> np.ndarray:
    """Return a copy of an image, resized to uint8 ``[h, w, 3]``, with boxes and a text in each.

    Args:
        width, height: of the image before it was resized, in whose pixels the boxes are.
        xyxy: ``[N, 4]``, left, top, right, bottom.
    """
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    scale = np.array([image.width / width, image.height / height] * 2)
    for corners, text, colour in zip(xyxy * scale, texts, colours, strict=True):
        left, right = np.clip(corners[::2], 0, image.width - 1).tolist()
        top, bottom = np.clip(corners[1::2], 0, image.height - 1).tolist()
        draw.rectangle((left, top, right, bottom), outline=colour, width=2)
        write_text(draw, (left + 2, max(0.0, top - 11)), text, colour)
    return np.asarray(image)


def write_text(draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, colour: tuple[int, ...]) -> None:
    """Write ``text`` on black at ``at``, left and top in pixels."""
    draw.rectangle(draw.textbbox(at, text), fill=(0, 0, 0))
    draw.text(at, text, fill=colour)
