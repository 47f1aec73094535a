"""Fashion-MNIST, and images that a dense probe can be asked about: garments on pieces of pictures.

Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) has ten classes of garments in 28x28 grey pixels. Its 60,000 training images
are for the bank, its 10,000 test images for the queries. No student is taught on either.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import binary_closing, binary_fill_holes, distance_transform_edt

from benchmarks.teach.pictures import GARMENTS, LIGHT
from radioplat.errors import DataError
from radioplat.quickstart.photographs import Box, random_box, relight

CLASSES = ("t_shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle_boot")
BACKGROUND = "background"  # label 0 of a mask; class k of Fashion-MNIST is label k + 1

SIDE = 192  # of a composite: six positions of a network of stride 32
SIDES = (160, 232)  # of the piece of a picture behind it
ITEMS = (3, 5)
ITEM_SIDES = (64, 96)  # so that a position of stride 32 can lie within a garment
TRIES = 40  # of a place for a garment that touches no other
FAINT = 12  # grey value up to which a pixel of Fashion-MNIST is empty
TINT = (0.55, 1.0)


@dataclass(frozen=True)
class Garments:
    """Images uint8 ``[N, 28, 28]`` and classes uint8 ``[N]``."""

    images: np.ndarray
    labels: np.ndarray

    def balanced(self, count: int, rng: np.random.Generator) -> Garments:
        """Return ``count`` of them, drawn without repetition, each class as often as the others (or once more)."""
        chosen = []
        for label in range(len(CLASSES)):
            own = np.flatnonzero(self.labels == label)
            wanted = count // len(CLASSES) + (label < count % len(CLASSES))
            if wanted > len(own):
                raise DataError(f"{wanted} images of {CLASSES[label]} were asked for, and there are {len(own)}")
            chosen.append(rng.choice(own, wanted, replace=False))
        order = rng.permutation(np.concatenate(chosen))
        return Garments(self.images[order], self.labels[order])


def read_garments(folder: Path) -> tuple[Garments, Garments]:
    """Read the images for the bank and for the queries from the unpacked package.

    Raises:
        DataError: a file is missing or is not what its name says.
    """
    place = folder / GARMENTS / "usr/share/datasets/fashion-mnist"
    return tuple(
        Garments(_idx(place / f"{part}-images-idx3-ubyte.gz", 3), _idx(place / f"{part}-labels-idx1-ubyte.gz", 1))
        for part in ("train", "t10k")
    )  # type: ignore[return-value]  # two parts


def _idx(path: Path, dimensions: int) -> np.ndarray:
    """Read LeCun's IDX format: two zero bytes, type 8 (uint8), dimensions, big-endian sizes, values."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path), hint=f"Fetch {GARMENTS} again.") from error
    shape = np.frombuffer(data, ">u4", dimensions, 4) if len(data) >= 4 + 4 * dimensions else np.zeros(1, int)
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) - 4 - 4 * dimensions != int(np.prod(shape)):
        raise DataError("this is no IDX file of bytes", where=str(path), hint=f"Fetch {GARMENTS} again.")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape.astype(int))


def enlarged(garments: Garments, side: int) -> np.ndarray:
    """Return them as uint8 ``[N, side, side, 3]``, bicubic."""
    found = np.empty((len(garments.images), side, side, 3), np.uint8)
    for number, pixels in enumerate(garments.images):
        grey = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
        found[number] = np.asarray(grey)[..., None]
    return found


def composite(
    background: Image.Image, part: Box, garments: Garments, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Lay three to five tinted garments on a piece of a picture; they touch neither each other nor the edge.

    Returns:
        image uint8 ``[192, 192, 3]`` and mask uint8 ``[192, 192]``: 0 background, else 1 + class.
    """
    image = _ground(background, part, rng)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for _ in range(int(rng.integers(ITEMS[0], ITEMS[1] + 1))):
        number = int(rng.integers(len(garments.images)))
        side = int(rng.integers(ITEM_SIDES[0], ITEM_SIDES[1] + 1))
        tint = rng.uniform(*TINT, 3)
        places = rng.integers(0, SIDE - side + 1, (TRIES, 2))
        outline = _outline(garments.images[number])
        grey, shape = _resized(_continued(garments.images[number], outline), side), _resized(outline, side)
        for y, x in places:
            if not mask[y : y + side, x : x + side].any():
                opaque = shape[..., None] / 255
                window = image[y : y + side, x : x + side]
                window[:] = np.round(window * (1 - opaque) + grey[..., None] * tint * opaque)
                mask[y : y + side, x : x + side][shape >= 128] = 1 + garments.labels[number]
                break
    return image, mask


def _ground(background: Image.Image, part: Box, rng: np.random.Generator) -> np.ndarray:
    box = random_box(part, SIDES, None, rng)
    piece = relight(background.crop(box), rng, *LIGHT)
    return np.array(piece.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _outline(pixels: np.ndarray) -> np.ndarray:
    """255 inside a garment, dark prints included, else 0."""
    padded = np.pad(pixels > FAINT, 2)  # else closing eats what touches the edge
    return (binary_fill_holes(binary_closing(padded))[2:-2, 2:-2] * 255).astype(np.uint8)


def _continued(pixels: np.ndarray, outline: np.ndarray) -> np.ndarray:
    """A garment whose edge goes on outside of it: the black around it would frame it when it is enlarged."""
    inside = (outline > 0) & (pixels > FAINT)
    if not inside.any():
        return pixels
    nearest = distance_transform_edt(~inside, return_distances=False, return_indices=True)
    return np.where(outline > 0, pixels, pixels[tuple(nearest)])


def _resized(pixels: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR))
