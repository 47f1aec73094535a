"""Images with masks of classes, as square views: what a segmentation probe is fitted and judged on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from radioplat.data.crops import centre_crop
from radioplat.data.decode import MAX_PIXELS, BadSample, Decoded, decode_rgb
from radioplat.data.views import render, view_matrix
from radioplat.errors import DataError
from radioplat.spec.evaluation import SegmentationConfig

IGNORE = 255
_EXTENSIONS = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tiff", ".tif"}
_WHERE = "evaluate.segmentation"
_CLASS_MODES = ("L", "P", "1")  # a palette's numbers are the classes, whatever their colours


@dataclass(frozen=True)
class Pair:
    """An image and its mask; ``name`` is the path below their folders, without its ending."""

    name: str
    image: Path
    mask: Path


def find_pairs(config: SegmentationConfig) -> tuple[list[Pair], list[Pair]]:
    """The training and the held-out pairs, sorted by name.

    Without folders of their own the held-out pairs are ``val_share`` of all, those whose names have the smallest
    sha256: the split depends on the names alone.

    Raises:
        DataError: a folder is missing, an image has no mask or a mask no image, or a split is empty.
    """
    assert config.images_dir and config.masks_dir
    pairs = _pairs(config.images_dir, config.masks_dir, "images_dir", "masks_dir")
    if config.val_images_dir and config.val_masks_dir:
        held = _pairs(config.val_images_dir, config.val_masks_dir, "val_images_dir", "val_masks_dir")
        training = pairs
    else:
        ranked = sorted(pairs, key=_rank)
        count = max(1, round(config.val_share * len(pairs)))
        held, training = sorted(ranked[:count], key=lambda p: p.name), sorted(ranked[count:], key=lambda p: p.name)
    if len(training) < 2:  # one to fit, one to judge weight decays
        raise DataError(
            f"segmentation needs at least two training images, and there are {len(training)}",
            where=f"{_WHERE}.images_dir",
            hint="Give more, or held-out ones apart as val_images_dir and val_masks_dir.",
        )
    return _at_most(training, config.max_images), _at_most(held, config.max_images)


def _pairs(images_dir: str, masks_dir: str, images_field: str, masks_field: str) -> list[Pair]:
    images = _files(images_dir, _EXTENSIONS, images_field)
    masks = _files(masks_dir, {".png"}, masks_field)
    for name in sorted(images.keys() ^ masks.keys()):
        missing, field = ("mask", masks_field) if name in images else ("image", images_field)
        has = images.get(name) or masks.get(name)
        raise DataError(f"{has} has no {missing}", where=f"{_WHERE}.{field}", hint=f"Its name would be {name}.*")
    return [Pair(name, images[name], masks[name]) for name in sorted(images)]


def _files(folder: str, endings: set[str], field: str) -> dict[str, Path]:
    root, where = Path(folder), f"{_WHERE}.{field}"
    if not root.is_dir():
        raise DataError(f"no such folder: {folder}", where=where)
    found: dict[str, Path] = {}
    for path in sorted(p for p in root.rglob("*") if p.suffix.lower() in endings and p.is_file()):
        name = path.relative_to(root).with_suffix("").as_posix()
        if name in found:
            raise DataError(f"{path} and {found[name]} have one name", where=where)
        found[name] = path
    if not found:
        what = "PNG" if endings == {".png"} else "image"
        raise DataError(f"{folder} holds no {what}", where=where)
    return found


def _rank(pair: Pair) -> bytes:
    return hashlib.sha256(pair.name.encode()).digest()


def _at_most(pairs: list[Pair], limit: int | None) -> list[Pair]:
    return pairs if limit is None else sorted(sorted(pairs, key=_rank)[:limit], key=lambda p: p.name)


@dataclass(frozen=True)
class Masked:
    """A batch.

    Attributes:
        pixels: by view size: uint8 ``[B, 3, size, size]``, the centred squares.
        masks: uint8 ``[B, S, S]`` at the largest of the sizes; ``IGNORE`` where a pixel has no class.
    """

    pixels: dict[int, Tensor]
    masks: Tensor


def read_pairs(
    pairs: list[Pair], sizes: set[int], classes: int, batch_size: int, threads: int = 1, max_pixels: int = MAX_PIXELS
) -> Iterator[Masked]:
    """Batches in the order of ``pairs``.

    A pixel of a mask's view has the class of the source pixel at its centre: classes are never mixed.

    Raises:
        DataError: an image or a mask cannot be read, differ in size, or hold a class that is not below ``classes``.
    """
    with ThreadPoolExecutor(threads, "masks") as pool:
        for start in range(0, len(pairs), batch_size):
            part = list(pool.map(lambda p: _read(p, sizes, classes, max_pixels), pairs[start : start + batch_size]))
            pixels = {size: torch.from_numpy(np.stack([views[size] for views, _ in part])) for size in sizes}
            yield Masked(pixels, torch.from_numpy(np.stack([mask for _, mask in part])))


def _read(pair: Pair, sizes: set[int], classes: int, max_pixels: int) -> tuple[dict[int, np.ndarray], np.ndarray]:
    try:
        image = decode_rgb(pair.image.read_bytes(), 1.0, max_pixels)
    except (OSError, BadSample) as error:
        raise DataError(f"{pair.image} cannot be read: {error}", where=f"{_WHERE}.images_dir") from None
    mask = read_mask(pair.mask, classes)
    if mask.shape != (image.height, image.width):
        sizes_of = f"{mask.shape[1]}x{mask.shape[0]}, and its image {image.width}x{image.height}"
        raise DataError(f"{pair.mask} has {sizes_of}", where=f"{_WHERE}.masks_dir")
    largest = max(sizes)
    return {size: _view(image, size) for size in sizes}, _mask_view(mask, largest)


def read_mask(path: Path, classes: int) -> np.ndarray:
    """Class numbers uint8 ``[H, W]``.

    Raises:
        DataError: not a PNG of one 8-bit channel, or a number that is neither a class nor ``IGNORE``.
    """
    where = f"{_WHERE}.masks_dir"
    try:
        with Image.open(path) as opened:
            mode, mask = opened.mode, np.asarray(opened)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} cannot be read: {error}", where=where) from None
    if mode not in _CLASS_MODES or mask.ndim != 2:
        hint = "A mask has one channel of 8 bits (or a palette): the number of a class, 255 for none."
        raise DataError(f"{path} is an image of mode {mode}, no mask", where=where, hint=hint)
    mask = mask.astype(np.uint8)
    if len(wrong := np.unique(mask[(mask >= classes) & (mask != IGNORE)])):
        hint = f"Classes are 0 to {classes - 1}, and {IGNORE} is ignored."
        raise DataError(f"{path} holds class {wrong[0]}", where=f"{_WHERE}.num_classes", hint=hint)
    return mask


def _view(image: Decoded, size: int) -> np.ndarray:
    matrix = view_matrix(centre_crop(image.width, image.height).matrix(), size)
    pixels, _ = render(image, matrix, size)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _mask_view(mask: np.ndarray, size: int) -> np.ndarray:
    crop = centre_crop(mask.shape[1], mask.shape[0]).box
    centre = (np.arange(size) + 0.5) / size
    rows = np.minimum((crop.top + centre * crop.height).astype(int), mask.shape[0] - 1)
    columns = np.minimum((crop.left + centre * crop.width).astype(int), mask.shape[1] - 1)
    return mask[rows[:, None], columns]
