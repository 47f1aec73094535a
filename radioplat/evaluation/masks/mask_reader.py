"""Read images with class masks as square views, for decoders on frozen maps."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from radioplat.data.detection.boxes import Faults
from radioplat.data.images.decode import MAX_PIXELS, BadSample, Decoded, decode_rgb
from radioplat.data.views.crops import Crop, centre_crop, plan_crops
from radioplat.data.views.masks import view_mask
from radioplat.data.views.render import render, view_matrix
from radioplat.evaluation.masks.mask_files import Sample
from radioplat.spec.schema.dataset import AugmentationConfig
from radioplat.spec.schema.evaluate import MaskedConfig

IGNORE = 255  # in a mask that was read, whatever value the file uses
_CLASS_MODES = ("L", "P", "1")  # in a palette image the indices are the classes; colours are ignored


@dataclass(frozen=True)
class Masked:
    """A batch of views.

    Attributes:
        pixels: for each role, uint8 ``[B, 3, size, size]`` by view size.
        masks: uint8 ``[B, S, S]`` at the largest of the sizes; ``IGNORE`` where a pixel has no class.
        owner: int64 ``[B]``, the index of each view's sample in the list that was read.
    """

    pixels: tuple[dict[int, Tensor], ...]
    masks: Tensor
    owner: Tensor


@dataclass(frozen=True)
class _View:
    images: tuple[dict[int, np.ndarray], ...]
    mask: np.ndarray
    owner: int


class _Unusable(Exception):
    """A sample that is left out; the arguments are the reason and a message."""


@dataclass
class MaskReader:
    """Reads samples as views.

    Attributes:
        config: the section of the spec.
        sizes: pixels a side, of all models.
        faults: samples that cannot be used are left out and added here.
        views: number of views per sample: first the centred square, then random ones drawn by ``augmentation``.
        seed: of the random views.
    """

    config: MaskedConfig
    sizes: set[int]
    batch_size: int
    faults: Faults
    threads: int = 1
    max_pixels: int = MAX_PIXELS
    augmentation: AugmentationConfig | None = None
    views: int = 1
    seed: int = 0

    def read(self, samples: list[Sample]) -> Iterator[Masked]:
        """Yield batches of ``batch_size`` views in the order of ``samples``; the last one may be smaller."""
        waiting: list[_View] = []
        with ThreadPoolExecutor(self.threads, "masks") as pool:
            for start in range(0, len(samples), self.batch_size):
                part = range(start, min(start + self.batch_size, len(samples)))
                for made in pool.map(lambda i: self._views(samples[i], i), part):
                    if isinstance(made, _Unusable):
                        self.faults.add(*made.args)
                    else:
                        waiting += made
                while len(waiting) >= self.batch_size:
                    yield self._batch(waiting[: self.batch_size])
                    waiting = waiting[self.batch_size :]
        if waiting:
            yield self._batch(waiting)

    def _batch(self, views: list[_View]) -> Masked:
        pixels = tuple(
            {size: torch.from_numpy(np.stack([view.images[role][size] for view in views])) for size in self.sizes}
            for role in range(len(self.config.roles))
        )
        masks = torch.from_numpy(np.stack([view.mask for view in views]))
        return Masked(pixels, masks, torch.tensor([view.owner for view in views]))

    def _views(self, sample: Sample, place: int) -> list[_View] | _Unusable:
        try:
            images = [self._image(sample, role) for role in range(len(sample.images))]
            mask = read_mask(sample, self.config, {(image.width, image.height) for image in images})
        except _Unusable as unusable:
            return unusable
        made = []
        for crop in self._crops(images[0].width, images[0].height, place):
            matrices = {size: view_matrix(crop.matrix(), size) for size in self.sizes}
            shown = tuple({size: _view(image, matrices[size], size) for size in self.sizes} for image in images)
            largest = max(self.sizes)
            made.append(_View(shown, view_mask(mask, matrices[largest], largest, IGNORE), place))
        return made

    def _crops(self, width: int, height: int, place: int) -> list[Crop]:
        positions = place * self.views + np.arange(1, self.views)
        sides = (np.full(len(positions), width), np.full(len(positions), height))
        return [centre_crop(width, height), *plan_crops(*sides, self.augmentation, self.seed, positions)]

    def _image(self, sample: Sample, role: int) -> Decoded:
        try:
            return decode_rgb(sample.images[role].read(), 1.0, self.max_pixels)
        except (OSError, BadSample) as error:
            raise _Unusable("unreadable", f"{sample.name}: {sample.images[role].path}: {error}") from None


def read_mask(sample: Sample, config: MaskedConfig, sizes: set[tuple[int, int]]) -> np.ndarray:
    """Return the classes of a mask, uint8 ``[H, W]``, ``IGNORE`` where there is none.

    Args:
        sizes: (width, height) of each of the sample's images; all must be equal, and equal to the mask's.

    Raises:
        _Unusable: it is no PNG of one 8-bit channel, has another size, or contains a number that is neither a class
            nor ``config.ignore_index``.
    """
    try:
        with Image.open(io.BytesIO(sample.mask.read()), formats=("PNG",)) as opened:
            if opened.mode not in _CLASS_MODES:
                message = f"{sample.name}: an image of mode {opened.mode}: 8 bits a pixel, or a palette, are needed"
                raise _Unusable("bad_mask", message)
            if sizes != {opened.size}:
                sides = " and ".join(f"{w}x{h}" for w, h in sorted(sizes))
                raise _Unusable("size_mismatch", f"{sample.name}: mask {opened.width}x{opened.height}, image {sides}")
            mask = np.asarray(opened).astype(np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _Unusable("bad_mask", f"{sample.name}: {error}") from None
    classes = _classes_of_numbers(config)[mask]
    if (classes < 0).any():
        raise _Unusable("unknown_class", f"{sample.name}: {int(mask[classes < 0].min())}")
    return classes.astype(np.uint8)


def _classes_of_numbers(config: MaskedConfig) -> np.ndarray:
    """Return the class of each number in a mask, int16 ``[256]``: ``IGNORE`` for no class, -1 for an unknown number."""
    table = np.full(256, -1, np.int16)
    values = config.class_values or list(range(config.num_classes))
    table[values] = np.arange(len(values))
    if config.ignore_index is not None:
        table[config.ignore_index] = IGNORE
    return table


def _view(image: Decoded, matrix: np.ndarray, size: int) -> np.ndarray:
    pixels, _ = render(image, matrix, size)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
