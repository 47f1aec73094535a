"""A mask of classes follows its image into a view by the view's own homography."""

from __future__ import annotations

import numpy as np

_NEAR = 1e-6  # of a pixel: what the product of matrices may lose


def view_mask(mask: np.ndarray, matrix: np.ndarray, size: int, outside: int) -> np.ndarray:
    """The mask that a view shows: the class of the source pixel at the centre of each of its own; never a mixture.

    Args:
        mask: ``[H, W]``, any integers.
        matrix: ``[3, 3]``, view pixels to source pixels, see :func:`radioplat.data.views.render.view_matrix`.
        size: pixels a side of the view.
        outside: what a pixel has whose centre lies outside of the source.

    Returns:
        ``[size, size]`` of the mask's dtype.
    """
    height, width = mask.shape
    centre = np.arange(size) + 0.5
    x, y, w = (row[0] * centre + row[1] * centre[:, None] + row[2] for row in matrix)
    ahead = w > 0  # behind a perspective view's horizon there is nothing
    w = np.where(ahead, w, 1.0)
    column, row = np.floor(x / w + _NEAR), np.floor(y / w + _NEAR)
    seen = ahead & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    column, row = np.where(seen, column, 0).astype(int), np.where(seen, row, 0).astype(int)
    return np.where(seen, mask[row, column], np.asarray(outside, mask.dtype))
