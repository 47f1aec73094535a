"""Render views of a decoded image.

Coordinates are continuous and cover areas: pixel (i, j) is the square [i, i+1) x [j, j+1) and its centre is
(i + 0.5, j + 0.5), in a view as in the source. A homography therefore maps view to source by one matrix whatever
the resolutions, and a cell of a feature map of stride p has its centre at ((i + 0.5) p, (j + 0.5) p) of the view.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from radioplat.data.images.decode import Decoded
from radioplat.data.images.resize import resize
from radioplat.data.views.crops import Box

_NEAR = 1e-6  # of a pixel: tolerance for rounding in the product of matrices


class ViewSpec(NamedTuple):
    """A square view, cut from every image of a batch.

    Attributes:
        name: key of the view in a batch.
        size: pixels a side; the largest of ``sizes`` if these are given.
        patch: pixels a side of the model's patches; shifts are multiples of it.
        sizes: (size, probability) pairs; one is drawn for each micro-batch, the same for all views with equal pairs.
        plan: the fields of each :class:`radioplat.data.order.partitions.Stretch` of the run: sizes that replace
            ``sizes`` in a range of micro-batches, or that the view is left out there; empty: the same everywhere.
        shifted: show a shifted window of the crop even if other views show all of it.
    """

    name: str
    size: int
    patch: int = 1
    sizes: tuple[tuple[int, float], ...] = ()
    plan: tuple[tuple, ...] = ()
    shifted: bool = False


def view_matrix(crop: np.ndarray, size: int, window: np.ndarray | None = None) -> np.ndarray:
    """Return the map from view pixels to source pixels, float64 ``[..., 3, 3]``.

    Args:
        crop: ``[..., 3, 3]``, see :meth:`radioplat.data.views.crops.Crop.matrix`.
        size: pixels a side of the view.
        window: ``[..., 3, 3]``, the view's window inside the crop, unit square to unit square; None for all of it.
    """
    whole = crop if window is None else crop @ window
    return whole * np.array([1 / size, 1 / size, 1.0])


def reduction(matrix: np.ndarray, size: int) -> np.ndarray:
    """Return the source pixels for each view pixel, the minimum over axes and corners of the view: float64 ``[...]``.

    Args:
        matrix: ``[..., 3, 3]``, view pixels to source pixels.
        size: pixels a side of the view.
    """
    corners = np.array([[0, 0, 1], [size, 0, 1], [0, size, 1], [size, size, 1.0]])
    points = corners @ matrix.swapaxes(-1, -2)  # [..., corner, (x, y, w)]
    place, depth = points[..., :2, None] / points[..., 2:, None], points[..., 2, None]
    steps = (matrix[..., None, :2, :2] - place * matrix[..., None, 2:, :2]) / depth[..., None]
    return np.hypot(steps[..., 0, :], steps[..., 1, :]).min((-1, -2))


def render(image: Decoded, matrix: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Render a view of ``image`` with antialiasing; ``matrix`` maps view pixels to source pixels.

    A view inside the source with sides parallel to it is cut and resized (triangle filter, as Pillow's bilinear); any
    other is resized to the view's scale and then warped, bilinear.

    Returns:
        uint8 ``[size, size, 3]``, and bool ``[size, size]``, False where a pixel's centre is outside of the source
        (the view is black there), or None if there is no such pixel.
    """
    box = _aligned(matrix, size)
    if box is None or not _inside(box, image):
        return _warp(image, matrix, size)
    pixels = resample(image, box, (size, size))
    if abs(matrix[0, 1]) > abs(matrix[0, 0]):  # a quarter turn: view x runs along source y
        return pixels.swapaxes(0, 1)[:: -1 if matrix[0, 1] < 0 else 1, :: -1 if matrix[1, 0] < 0 else 1], None
    return pixels[:: -1 if matrix[1, 1] < 0 else 1, :: -1 if matrix[0, 0] < 0 else 1], None


def resample(image: Decoded, box: Box, size: tuple[int, int]) -> np.ndarray:
    """Cut ``box`` (inside the source, in source pixels) and resize it to ``size`` (width, height): uint8 HWC."""
    left, top, right, bottom = (edge / image.factor for edge in box)
    height, width = image.rgb.shape[:2]
    x0, y0 = max(0, math.floor(left + _NEAR)), max(0, math.floor(top + _NEAR))
    x1, y1 = min(width, math.ceil(right - _NEAR)), min(height, math.ceil(bottom - _NEAR))
    # Only the crop is passed on: the filter must not use pixels outside of it.
    left, top = max(0.0, left - x0), max(0.0, top - y0)
    right, bottom = min(right - x0, x1 - x0), min(bottom - y0, y1 - y0)
    return resize(image.rgb[y0:y1, x0:x1], Box(left, top, right, bottom), size)


def _aligned(matrix: np.ndarray, size: int) -> Box | None:
    """Return the box of a view whose sides are parallel to the source's; None for any other view."""
    (a, b, x), (c, d, y), (g, h, _) = matrix.tolist()
    if g or h or not ((abs(b) < _NEAR and abs(c) < _NEAR) or (abs(a) < _NEAR and abs(d) < _NEAR)):
        return None
    far_x, far_y = x + (a + b) * size, y + (c + d) * size
    return Box(min(x, far_x), min(y, far_y), max(x, far_x), max(y, far_y))


def _inside(box: Box, image: Decoded) -> bool:
    return (
        box.left >= -_NEAR
        and box.top >= -_NEAR
        and box.right <= image.width + _NEAR
        and box.bottom <= image.height + _NEAR
    )


def _warp(image: Decoded, matrix: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray | None]:
    edges = np.array([[0, 0, 1], [size, 0, 1], [0, size, 1], [size, size, 1]]) @ matrix.T
    corners = edges[:, :2] / edges[:, 2:]
    x0, y0 = np.maximum(np.floor(corners.min(0)), 0)
    x1, y1 = np.minimum(np.ceil(corners.max(0)), (image.width, image.height))
    if x0 >= x1 or y0 >= y1:
        return np.zeros((size, size, 3), np.uint8), np.zeros((size, size), bool)
    # Resized to the view's scale first, with antialiasing, since the bilinear warp uses only four pixels.
    scale = max(1.0, float(reduction(matrix, size)))
    small = max(1, math.ceil((x1 - x0) / scale)), max(1, math.ceil((y1 - y0) / scale))
    part = Image.fromarray(resample(image, Box(x0, y0, x1, y1), small))
    to_part = np.diag([small[0] / (x1 - x0), small[1] / (y1 - y0), 1.0]) @ np.array(
        [[1, 0, -x0], [0, 1, -y0], [0, 0, 1]]
    )
    data = to_part @ matrix
    data = (data / data[2, 2]).ravel()[:8].tolist()
    pixels = np.asarray(part.transform((size, size), Image.Transform.PERSPECTIVE, data, Image.Resampling.BILINEAR))
    centre = np.arange(size) + 0.5
    x, y, w = (row[0] * centre + row[1] * centre[:, None] + row[2] for row in matrix)
    valid = (x >= 0) & (y >= 0) & (x <= image.width * w) & (y <= image.height * w)
    return pixels, None if valid.all() else valid
