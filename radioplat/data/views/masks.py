"""Transform a mask of classes into a view by the view's homography."""

from __future__ import annotations

import numpy as np

_NEAR = 1e-6  # of a pixel: tolerance for rounding in the product of matrices


def view_mask(mask: np.ndarray, matrix: np.ndarray, size: int, outside: int) -> np.ndarray:
    """Sample a mask by nearest neighbour: each view pixel gets the class of the source pixel at its centre.

    Args:
        mask: ``[H, W]``, any integers.
        matrix: ``[3, 3]``, view pixels to source pixels, see :func:`radioplat.data.views.render.view_matrix`.
        size: pixels a side of the view.
        outside: value of pixels whose centre is outside of the source.

    Returns:
        ``[size, size]`` of the mask's dtype.
    """
    height, width = mask.shape
    centre = np.arange(size) + 0.5
    x, y, w = (row[0] * centre + row[1] * centre[:, None] + row[2] for row in matrix)
    ahead = w > 0  # False behind the horizon of a perspective view
    w = np.where(ahead, w, 1.0)
    column, row = np.floor(x / w + _NEAR), np.floor(y / w + _NEAR)
    inside = ahead & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    column, row = np.where(inside, column, 0).astype(int), np.where(inside, row, 0).astype(int)
    return np.where(inside, mask[row, column], np.asarray(outside, mask.dtype))
