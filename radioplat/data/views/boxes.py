"""Boxes follow their image into a view by the view's own homography."""

from __future__ import annotations

import numpy as np

from radioplat.data.detection.boxes import Boxes


def view_boxes(boxes: Boxes, matrix: np.ndarray, size: int, min_visible: float = 0.1, min_side: float = 1.0) -> Boxes:
    """The boxes that a view shows, in its pixels.

    Each box is a polygon that is cut at the view's edges and then enclosed again. Cutting is done in homogeneous
    coordinates (Blinn and Newell, Clipping Using Homogeneous Coordinates, 1978), so that a corner which a perspective
    view would put behind its horizon is cut away like any other.

    Args:
        boxes: in source pixels.
        matrix: ``[3, 3]``, view pixels to source pixels, see :func:`radioplat.data.views.render.view_matrix`.
        size: pixels a side of the view.
        min_visible: a box of which less than this share of its own area is seen is left out.
        min_side: pixels of the view; a box that is narrower or lower there is left out.

    Returns:
        Boxes with areas in view pixels; a crowd stays one.
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
        source, seen = _flat(polygon @ matrix.T), _flat(polygon)
        visible = _area(source)
        share = visible / ((x1 - x0) * (y1 - y0))
        low, high = np.clip(seen.min(0), 0, size), np.clip(seen.max(0), 0, size)
        if share < min_visible or (high - low).min() < min_side or not visible > 0:
            continue
        kept.append(i)
        corners.append((*low, *high))
        areas.append(boxes.area[i] * share * _area(seen) / visible)
    chosen = boxes.take(np.array(kept, np.int64))
    return Boxes.of(corners, chosen.labels, chosen.crowd, areas)


def _cut(polygon: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Sutherland and Hodgman (1974): what of a convex polygon, homogeneous ``[K, 3]``, lies where ``edge . p >= 0``."""
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
    """Of a polygon ``[K, 2]``, by the shoelace formula."""
    (x, y), (u, v) = points.T, np.roll(points, -1, 0).T
    return float(abs((x * v - u * y).sum()) / 2)
