"""Photometric augmentation: brightness, colour, sharpness, erasing; drawn once per image, equal in all of its views."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from radioplat.data.order.keyed_random import uniforms
from radioplat.spec.schema.dataset import AugmentationConfig

_RGB_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_YIQ_TO_RGB = np.linalg.inv(_RGB_TO_YIQ)
GREY = 128
BLUR_SHARE, BLUR_SIGMA = 0.5, (0.1, 2.0)  # of the images; in pixels of a view of 224 a side
ERASED_AREA, ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)  # as Zhong et al., Random Erasing (2020)
AUG_OPS, AUG_STRENGTH = 2, 0.9  # RandAugment, Cubuk et al. (2020): operations an image, and their magnitude of 1

Filter = Callable[[Image.Image], Image.Image]
# RandAugment's operations without a geometric transform; strength is in [-1, 1].
_RAND_AUG: tuple[Callable[[float], Filter], ...] = (
    lambda strength: lambda image: image,
    lambda strength: lambda image: ImageOps.solarize(image, int(256 - 128 * abs(strength))),
    lambda strength: lambda image: ImageOps.posterize(image, 8 - int(4 * abs(strength))),
    lambda strength: ImageOps.autocontrast,
    lambda strength: ImageOps.equalize,
    lambda strength: lambda image: ImageEnhance.Sharpness(image).enhance(1 + strength),
    lambda strength: colour_filter(1 + 0.9 * strength, 1, 1, 0),
    lambda strength: colour_filter(1, 1 + 0.9 * strength, 1, 0),
    lambda strength: colour_filter(1, 1, 1 + 0.9 * strength, 0),
)


@dataclass(frozen=True)
class Photometry:
    """Operations on every view of one image, in this order.

    Attributes:
        filters: photometric filters.
        sigma: of a Gaussian blur, as a fraction of the view's side; 0 for none.
        erased: rectangle painted grey: left, top, right, bottom as fractions of the view's side; None for none.
    """

    filters: list[Filter] = field(default_factory=list)
    sigma: float = 0.0
    erased: tuple[float, float, float, float] | None = None

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Apply the operations to uint8 ``[S, S, 3]``."""
        side = pixels.shape[0]
        if self.filters or self.sigma:
            image = Image.fromarray(np.ascontiguousarray(pixels))
            for change in self.filters:
                image = change(image)
            if self.sigma:
                image = image.filter(ImageFilter.GaussianBlur(self.sigma * side))
            pixels = np.asarray(image)
        if self.erased:
            left, top, right, bottom = (round(edge * side) for edge in self.erased)
            pixels = pixels.copy()
            pixels[top:bottom, left:right] = GREY
        return pixels


def plan_photometry(augmentation: AugmentationConfig | None, seed: int, keys: np.ndarray) -> list[Photometry] | None:
    """Draw the operations of samples by their ``keys`` (int64 ``[N]``); None if the spec enables none."""
    if augmentation is None:
        return None
    colour, aug, erase = augmentation.random_color, augmentation.random_aug, augmentation.random_erase
    if not (colour.enable or aug.enable or erase.enable or augmentation.with_random_blur):
        return None
    draws = {
        name: uniforms(seed, name, keys, count).tolist()
        for name, count in (("colour", 4), ("colour_chance", 1), ("rand_aug", 2 * AUG_OPS), ("blur", 2), ("erase", 5))
    }
    plans = []
    for colours, (chance,), ops, blur, rectangle in zip(*draws.values(), strict=True):
        filters = []
        if colour.enable and chance < colour.color_probability:
            amounts = colour.brightness, colour.contrast, colour.saturation
            bright, sharp, rich = (max(0.0, 1 + (2 * u - 1) * a) for u, a in zip(colours, amounts, strict=False))
            filters.append(colour_filter(bright, sharp, rich, (2 * colours[3] - 1) * colour.hue * 2 * math.pi))
        if aug.enable:
            for which, strength in zip(ops[::2], ops[1::2], strict=True):
                filters.append(_RAND_AUG[int(which * len(_RAND_AUG))]((2 * strength - 1) * AUG_STRENGTH))
        sigma = 0.0
        if augmentation.with_random_blur and blur[0] < BLUR_SHARE:
            sigma = (BLUR_SIGMA[0] + (BLUR_SIGMA[1] - BLUR_SIGMA[0]) * blur[1]) / 224
        erased = _rectangle(rectangle) if erase.enable and rectangle[0] < erase.erase_probability else None
        plans.append(Photometry(filters, sigma, erased))
    return plans


def colour_filter(brightness: float, contrast: float, saturation: float, hue: float) -> Filter:
    """Combine the changes into one affine map of RGB.

    Contrast is relative to middle grey, so that all views of an image change equally, whatever part they show. Hue
    rotates and saturation scales the I-Q plane.

    Args:
        brightness, contrast, saturation: factors.
        hue: angle in radians.
    """
    cos, sin = saturation * math.cos(hue), saturation * math.sin(hue)
    linear = brightness * contrast * (_YIQ_TO_RGB @ np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ _RGB_TO_YIQ)
    offset = np.full((3, 1), brightness * (1 - contrast) * GREY)
    matrix = tuple(np.hstack([linear, offset]).ravel().tolist())
    return lambda image: image.convert("RGB", matrix)


def _rectangle(draws: list[float]) -> tuple[float, float, float, float]:
    _, area, ratio, x, y = draws
    area = ERASED_AREA[0] + (ERASED_AREA[1] - ERASED_AREA[0]) * area
    low, high = np.log(ERASED_RATIO)
    ratio = math.exp(low + (high - low) * ratio)
    width, height = min(1.0, math.sqrt(area * ratio)), min(1.0, math.sqrt(area / ratio))
    left, top = x * (1 - width), y * (1 - height)
    return left, top, left + width, top + height
