"""Which part of an image is shown, and how it becomes a view.

Coordinates are continuous and cover areas: pixel (i, j) is the square [i, i+1) x [j, j+1) and its centre is
(i + 0.5, j + 0.5), in a view as in the source. A homography therefore maps view to source by one affine map whatever
the resolutions, and a cell of a feature map of stride p has its centre at ((i + 0.5) p, (j + 0.5) p) of the view.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from radioplat.data.decode import Decoded
from radioplat.errors import Problem, SpecError
from radioplat.spec.dataset import AugmentationConfig


@dataclass(frozen=True)
class ViewSpec:
    """A view that every image of a batch gets: square, ``size`` pixels a side."""

    name: str
    size: int


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
    """What all views of one image share: the rectangle, and whether it is mirrored left-right and top-bottom."""

    box: Box
    hflip: bool = False
    vflip: bool = False


def keyed(seed: int, purpose: str, position: int) -> np.random.Generator:
    """A generator that depends on its key alone, so that nothing is carried from sample to sample."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.Philox(key=np.array([int.from_bytes(digest, "little"), position], np.uint64)))


def centre_crop(width: int, height: int) -> Crop:
    """The centred square of the short side: the view of an evaluation."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return Crop(Box(left, top, left + side, top + side))


def plan_crop(width: int, height: int, augmentation: AugmentationConfig | None, seed: int, position: int) -> Crop:
    """The crop of the sample at ``position`` of the order; the same wherever and whenever it is asked.

    Args:
        width, height: of the source, in pixels.
        augmentation: None for an evaluation view. Without ``random_crop`` the box is the centred square.
        seed: of the run.
        position: the sample's place in the order.

    The box is drawn as torchvision's ``RandomResizedCrop`` draws it: area share uniform in ``scale_range``, log of the
    ratio uniform in ``ratio_range``, ten attempts, then the largest centred box within the ratios.
    """
    if augmentation is None:
        return centre_crop(width, height)
    crop = centre_crop(width, height)
    box, hflip, vflip = crop.box, False, False
    if augmentation.random_crop.enable and augmentation.with_random_crop:
        low, high = augmentation.random_crop.scale_range
        ratios = augmentation.random_crop.ratio_range
        box = _random_box(width, height, (low, high), (ratios[0], ratios[1]), keyed(seed, "crop", position))
    if augmentation.random_flip.enable:
        draws = keyed(seed, "flip", position).random(2)
        hflip = bool(draws[0] < augmentation.random_flip.hflip_probability)
        vflip = bool(draws[1] < augmentation.random_flip.vflip_probability)
    return Crop(box, hflip, vflip)


def _random_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> Box:
    low, high = math.log(ratio[0]), math.log(ratio[1])
    # All draws at once: how many attempts one image needs then changes no other draw.
    for area_draw, ratio_draw, x_draw, y_draw in rng.random((10, 4)):
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


def needed_size(width: int, height: int, box: Box, size: int) -> tuple[int, int]:
    """Width and height the whole image must be decoded at, so that ``box`` still has ``size`` pixels a side."""
    return math.ceil(size * width / box.width), math.ceil(size * height / box.height)


def make_view(image: Decoded, crop: Crop, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut ``crop`` out of ``image`` and resize it, antialiased (Pillow, bilinear), to a square.

    Returns:
        uint8 ``[3, size, size]`` and the float32 ``[3, 3]`` homography from view to source, both in pixels with
        centres at +0.5 (see the head of this file).
    """
    left, top, right, bottom = (edge / image.factor for edge in crop.box)
    height, width = image.rgb.shape[:2]
    x0, y0 = max(0, math.floor(left)), max(0, math.floor(top))
    x1, y1 = min(width, math.ceil(right)), min(height, math.ceil(bottom))
    # Only the cut is handed over: Pillow copies what it gets, and a filter must not look beyond the crop.
    part = Image.fromarray(np.ascontiguousarray(image.rgb[y0:y1, x0:x1]))
    inside = (max(0.0, left - x0), max(0.0, top - y0), min(right - x0, x1 - x0), min(bottom - y0, y1 - y0))
    resized = part.resize((size, size), Image.Resampling.BILINEAR, box=inside, reducing_gap=3.0)
    pixels = np.asarray(resized).transpose(2, 0, 1)[:, :: -1 if crop.vflip else 1, :: -1 if crop.hflip else 1]
    return pixels, homography(crop, size)


def homography(crop: Crop, size: int) -> np.ndarray:
    """float32 ``[3, 3]``: from a view of ``size`` pixels a side to the source, mirroring included."""
    box = crop.box
    sx, sy = box.width / size, box.height / size
    x, y = (box.right if crop.hflip else box.left), (box.bottom if crop.vflip else box.top)
    return np.array([[-sx if crop.hflip else sx, 0, x], [0, -sy if crop.vflip else sy, y], [0, 0, 1]], np.float32)


def refuse_unbuilt(augmentation: AugmentationConfig, path: str = "dataset.augmentation") -> None:
    """Refuse what the views cannot do yet, rather than leave it out in silence.

    Raises:
        SpecError: with a problem for each switch that is on, and for crop ranges that make no sense.
    """
    hint = "Switch it off; random_crop and random_flip are the augmentations of this version."
    switches = ("random_rotate", "random_color", "random_erase", "random_aug", "with_scale_random_crop")
    problems = [
        Problem("this augmentation is not built yet", f"{path}.{name}.enable", hint)
        for name in switches
        if getattr(augmentation, name).enable
    ]
    if augmentation.with_random_blur:
        problems.append(Problem("this augmentation is not built yet", f"{path}.with_random_blur", hint))
    scale, ratio = augmentation.random_crop.scale_range, augmentation.random_crop.ratio_range
    if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
        message = f"two shares with 0 < low <= high <= 1 are needed, not {scale}"
        problems.append(Problem(message, f"{path}.random_crop.scale_range"))
    if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1]:
        message = f"two ratios with 0 < low <= high are needed, not {ratio}"
        problems.append(Problem(message, f"{path}.random_crop.ratio_range"))
    if problems:
        raise SpecError(*problems)
