"""Draw the crop, flip and rotation of an image, which all of its views share."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from radioplat.data.order.keyed_random import uniforms
from radioplat.spec.schema.dataset import AugmentationConfig

ATTEMPTS = 10  # to fit a random box inside the image, before a centred one is used


class Box(NamedTuple):
    """A rectangle of the source, in source pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """Pixels from left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """Pixels from top to bottom."""
        return self.bottom - self.top


class Crop(NamedTuple):
    """The visible part of the source.

    Attributes:
        box: before the rotation.
        hflip, vflip: mirrored left-right, top-bottom.
        angle: degrees, counter-clockwise in the view, about the centre of the box.
    """

    box: Box
    hflip: bool = False
    vflip: bool = False
    angle: float = 0.0

    def matrix(self) -> np.ndarray:
        """Return the map from the unit square of a view (x right, y down) to source pixels: float64 ``[3, 3]``."""
        box = self.box
        cx, cy = (box.left + box.right) / 2, (box.top + box.bottom) / 2
        sx, sy = -box.width if self.hflip else box.width, -box.height if self.vflip else box.height
        cos, sin = _turn(self.angle)
        # The unit square is rotated about its centre, then mirrored, scaled and translated onto the box.
        return np.array(
            [
                [sx * cos, -sx * sin, cx - sx * (cos - sin) / 2],
                [sy * sin, sy * cos, cy - sy * (sin + cos) / 2],
                [0, 0, 1],
            ]
        )


def centre_crop(width: int, height: int) -> Crop:
    """Return the centred square of the short side, the crop of an evaluation."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return Crop(Box(left, top, left + side, top + side))


def whole_image(width: int, height: int) -> Crop:
    """Return the whole image, the crop of a detector."""
    return Crop(Box(0, 0, width, height))


def plan_crops(
    width: np.ndarray,
    height: np.ndarray,
    augmentation: AugmentationConfig | None,
    seed: int,
    keys: np.ndarray,
    whole: bool = False,
) -> list[Crop]:
    """Draw the crops of samples; a pure function of its arguments.

    ``random_crop`` draws like torchvision's ``RandomResizedCrop``: area share uniform in ``scale_range``, log of the
    ratio uniform in ``ratio_range``, ten attempts, then the largest centred box within the ratios.
    ``with_scale_random_crop`` replaces it: a square of the short side, divided by a scale drawn from its range.

    Args:
        width, height: int ``[N]``, of the sources, in pixels.
        augmentation: None for evaluation views. Without a random crop the box is the centred square.
        seed: of the run.
        keys: int64 ``[N]``, see :meth:`radioplat.data.views.view_plan.Recipe.keys`; not read without ``augmentation``.
        whole: use the whole image in place of the centred square.
    """
    sizes = list(zip(width.tolist(), height.tolist(), strict=True))
    if augmentation is None:
        return [whole_image(*size) if whole else centre_crop(*size) for size in sizes]
    boxes = _boxes(sizes, augmentation, seed, keys, whole)
    flip, rotate = augmentation.random_flip, augmentation.random_rotate
    flips = np.zeros((len(sizes), 2), bool)
    if flip.enable:
        flips = uniforms(seed, "flip", keys, 2) < (flip.hflip_probability, flip.vflip_probability)
    angles = [0.0] * len(sizes)
    if rotate.enable:
        draws = uniforms(seed, "rotate", keys, 2)
        chosen = (draws[:, 1] * len(rotate.angle_list)).astype(int)
        turned = draws[:, 0] < rotate.rotate_probability
        angles = [rotate.angle_list[c] if t else 0.0 for c, t in zip(chosen, turned, strict=True)]
    return [Crop(b, h, v, a) for b, (h, v), a in zip(boxes, flips.tolist(), angles, strict=True)]


def _boxes(
    sizes: list[tuple[int, int]], augmentation: AugmentationConfig, seed: int, keys: np.ndarray, whole: bool
) -> list[Box]:
    crop, scaled = augmentation.random_crop, augmentation.with_scale_random_crop
    if scaled.enable:
        draws = uniforms(seed, "scale_crop", keys, 3).tolist()
        return [_scaled_box(w, h, scaled.scale_range, d) for (w, h), d in zip(sizes, draws, strict=True)]
    if crop.enable and augmentation.with_random_crop:
        # All attempts are drawn at once, so that the number that one image needs does not change other draws.
        draws = uniforms(seed, "crop", keys, 4 * ATTEMPTS).tolist()
        ranges = crop.scale_range, crop.ratio_range
        return [_random_box(w, h, *ranges, d) for (w, h), d in zip(sizes, draws, strict=True)]
    return [(whole_image if whole else centre_crop)(*size).box for size in sizes]


def _random_box(width: int, height: int, scale: list[float], ratio: list[float], draws: list[float]) -> Box:
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for k in range(0, len(draws), 4):
        area_draw, ratio_draw, x_draw, y_draw = draws[k : k + 4]
        area = width * height * (scale[0] + (scale[1] - scale[0]) * area_draw)
        aspect = math.exp(low + (high - low) * ratio_draw)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x_draw * (width - w + 1)), int(y_draw * (height - h + 1))
            return Box(left, top, left + w, top + h)
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w = min(width, max(1, round(height * aspect)))
    h = min(height, max(1, round(width / aspect)))
    left, top = (width - w) // 2, (height - h) // 2
    return Box(left, top, left + w, top + h)


def _scaled_box(width: int, height: int, scale: list[float], draws: list[float]) -> Box:
    side = min(width, height) / (scale[0] + (scale[1] - scale[0]) * draws[0])
    left, top = draws[1] * (width - side), draws[2] * (height - side)
    return Box(left, top, left + side, top + side)


def _turn(angle: float) -> tuple[float, float]:
    """Return cosine and sine, exact for quarter turns, which then need no interpolation."""
    if angle % 90 == 0:
        return ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[int(angle // 90) % 4]
    return math.cos(math.radians(angle)), math.sin(math.radians(angle))
