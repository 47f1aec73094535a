"""Draw the window of each view inside the crop that the views of one image share.

Without equivariance every view shows the whole crop. With ``shift_equivariance`` each view shows its own window, moved
by whole patches; with ``full_equivariance`` its own quadrilateral. The view of the student's moving average may also be
shifted alone. The losses match positions between views by their homographies.
"""

from __future__ import annotations

import numpy as np

from radioplat.data.order.keyed_random import uniforms
from radioplat.data.order.partitions import draw_at
from radioplat.data.views.render import ViewSpec

SLACK = 0.2  # fraction of the crop's side by which a shifted window is smaller
JITTER = 0.15  # largest move of a warped view's corner along each axis, as a fraction of the crop's side


def shift_windows(view: ViewSpec, size: int, seed: int, keys: np.ndarray) -> np.ndarray:
    """Draw windows shifted by whole patches.

    Args:
        view: its name is part of the random key, so that student and teachers move independently.
        size: pixels a side of the view in this micro-batch.
        seed: of the run.
        keys: int64 ``[N]``, see :meth:`radioplat.data.views.view_plan.Recipe.keys`.

    Returns:
        float64 ``[N, 3, 3]``, unit square of the view to unit square of the crop.
    """
    share = 1 - SLACK
    moves = (uniforms(seed, f"shift/{view.name}", keys, 2) * (room(view, size) + 1)).astype(int)
    windows = np.tile(np.diag([share, share, 1.0]), (len(keys), 1, 1))
    windows[:, :2, 2] = moves * (view.patch * share / size)
    return windows


def room(view: ViewSpec, size: int) -> int:
    """Return the number of whole patches that a shifted window of ``size`` pixels can move inside the crop."""
    return int(size * SLACK / (1 - SLACK) / view.patch + 1e-9)


def warp_windows(view: ViewSpec, seed: int, keys: np.ndarray) -> np.ndarray:
    """Draw windows each of whose corners is moved by up to :data:`JITTER`, independently for each view.

    Returns:
        float64 ``[N, 3, 3]``, unit square of the view to unit square of the crop.
    """
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], float)
    moves = (uniforms(seed, f"warp/{view.name}", keys, 8).reshape(-1, 4, 2) * 2 - 1) * JITTER
    return np.stack([quadrilateral(square + move) for move in moves]) if len(keys) else np.empty((0, 3, 3))


def quadrilateral(corners: np.ndarray) -> np.ndarray:
    """Return the homography that maps (0,0), (1,0), (1,1), (0,1) to ``corners`` ``[4, 2]``: float64 ``[3, 3]``.

    Heckbert, Fundamentals of Texture Mapping and Image Warping (1989), section 2.2.3.
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    dx1, dx2, sx = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
    dy1, dy2, sy = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
    area = dx1 * dy2 - dx2 * dy1
    g, h = (sx * dy2 - dx2 * sy) / area, (dx1 * sy - sx * dy1) / area
    return np.array([[x1 - x0 + g * x1, x3 - x0 + h * x3, x0], [y1 - y0 + g * y1, y3 - y0 + h * y3, y0], [g, h, 1.0]])


def drawn_size(view: ViewSpec, seed: int, micro_batch: int) -> int:
    """Draw the pixels a side of ``view`` in a micro-batch; ``size`` if it is fixed, 0 if the view is left out."""
    pairs = draw_at(view.plan, micro_batch) if view.plan else view.sizes
    if len(pairs) == 1:
        return pairs[0][0]
    if not pairs:
        return 0 if view.plan else view.size
    chances = np.cumsum([chance for _, chance in pairs])
    draw = uniforms(seed, "resolution", np.array([micro_batch]), 1)[0, 0] * chances[-1]
    return pairs[int(np.searchsorted(chances, draw, side="right"))][0]
