"""Tile several low-resolution images into one picture of a high-resolution teacher's input size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radioplat.data.batch import View


@dataclass(frozen=True)
class Mosaic:
    """The images of a micro-batch, k x k in each picture, row by row.

    Attributes:
        pixels: uint8 ``[M, 3, side, side]``, M = ceil(B / k^2); black where there is no image.
        valid: bool ``[M, side, side]``, True where a pixel belongs to an image.
        picture: int64 ``[B]``, the picture that contains image i.
        corner: int64 ``[B, 2]``, left and top of image i in its picture, in pixels.
        homography: float32 ``[B, 3, 3]``, from the pixels of the picture to the source of image i.
    """

    pixels: np.ndarray
    valid: np.ndarray
    picture: np.ndarray
    corner: np.ndarray
    homography: np.ndarray


def make_mosaic(view: View, side: int, across: int) -> Mosaic:
    """Tile the images of ``view`` ``across`` x ``across``, without scaling, into pictures of ``side`` pixels a side.

    The remaining pixels at the right and at the bottom are padding.

    Raises:
        ValueError: the tiles do not fit.
    """
    count, _, height, width = view.pixels.shape
    if across < 1 or across * max(height, width) > side:
        raise ValueError(f"{across} x {across} images of {width}x{height} do not fit into {side}")
    picture, place = np.divmod(np.arange(count), across * across)
    row, column = np.divmod(place, across)
    corner = np.stack([column * width, row * height], 1)
    pixels = np.zeros((-(-count // across**2), 3, side, side), np.uint8)
    valid = np.zeros((len(pixels), side, side), bool)
    for i, (x, y) in enumerate(corner.tolist()):
        pixels[picture[i], :, y : y + height, x : x + width] = view.pixels[i]
        valid[picture[i], y : y + height, x : x + width] = True if view.valid is None else view.valid[i]
    back = np.tile(np.eye(3), (count, 1, 1))
    back[:, :2, 2] = -corner
    return Mosaic(pixels, valid, picture, corner, (view.homography @ back).astype(np.float32))
