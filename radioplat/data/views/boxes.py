"""Transform bounding boxes into a view by the view's homography."""

from __future__ import annotations

import numpy as np

from radioplat.data.detection.boxes import Boxes


def view_boxes(boxes: Boxes, matrix: np.ndarray, size: int, min_visible: float = 0.1, min_side: float = 1.0) -> Boxes:
    """Return the boxes that are visible in a view, in its pixels.

    Each box is transformed as a polygon, clipped to the view, and replaced by its bounding box. Clipping is done in
    homogeneous coordinates (Blinn and Newell, Clipping Using Homogeneous Coordinates, 1978), so that corners behind
    the horizon of a perspective view are removed too.

    Args:
        boxes: in source pixels.
        matrix: ``[3, 3]``, view pixels to source pixels, see :func:`radioplat.data.views.render.view_matrix`.
        size: pixels a side of the view.
        min_visible: minimum visible fraction of a box's area; below it the box is dropped.
        min_side: minimum width and height in view pixels; below it the box is dropped.

    Returns:
        Boxes with areas in view pixels; crowds stay crowds.
    """
    to_view = np.linalg.inv(matrix)
    edges = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, size], [0, -1, size]], float)
    kept, corners, areas = [], [], []
    for i, (x0, y0, x1, y1) in enumerate(boxes.xyxy.tolist()):
        polygon = np.array([[x0, y0, 1], [x1, y0, 1], [x1, y1, 1], [x0, y1, 1]]) @ to_view.T
        for edge in edges:
            polygon = _cut(polygon, edge)
        if len(polygon) < 3:
            continue
        source, shown = _flat(polygon @ matrix.T), _flat(polygon)
        area = _area(source)
        share = area / ((x1 - x0) * (y1 - y0))
        low, high = np.clip(shown.min(0), 0, size), np.clip(shown.max(0), 0, size)
        if share < min_visible or (high - low).min() < min_side or not area > 0:
            continue
        kept.append(i)
        corners.append((*low, *high))
        areas.append(boxes.area[i] * share * _area(shown) / area)
    chosen = boxes.take(np.array(kept, np.int64))
    return Boxes.of(corners, chosen.labels, chosen.crowd, areas)


def _cut(polygon: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Clip a convex polygon, homogeneous ``[K, 3]``, to ``edge . p >= 0`` (Sutherland and Hodgman, 1974)."""
    side = polygon @ edge
    out = []
    for i, (here, at) in enumerate(zip(polygon, side, strict=True)):
        before, was = polygon[i - 1], side[i - 1]
        if (at >= 0) != (was >= 0):
            out.append(before + (here - before) * (was / (was - at)))
        if at >= 0:
            out.append(here)
    return np.array(out).reshape(-1, 3)


def _flat(points: np.ndarray) -> np.ndarray:
    return points[:, :2] / points[:, 2:]


def _area(points: np.ndarray) -> float:
    """Return the area of a polygon ``[K, 2]``, by the shoelace formula."""
    (x, y), (u, v) = points.T, np.roll(points, -1, 0).T
    return float(abs((x * v - u * y).sum()) / 2)
