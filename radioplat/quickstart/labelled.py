"""Small labelled data sets in installed packages: scikit-learn's digits, and scikit-image's faces and non-faces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from radioplat.errors import DataError

SIDES = (64, 128)  # range of an enlarged image's side in pixels
HELD_OUT_EVERY = 5  # every fifth of each class is held out
_INSTALL = "pip install 'radioplat[quickstart]'"


@dataclass(frozen=True)
class Labelled:
    """A small image as it is in the package.

    Attributes:
        pixels: uint8 ``[H, W]``, grey.
        label: ``digit_3``, ``face`` or ``not_face``.
        caption: the same in words.
    """

    pixels: np.ndarray
    label: str
    caption: str

    def raw(self) -> Image.Image:
        """Return the image at its own size: 8x8 or 25x25, too small for a resolution filter."""
        return Image.fromarray(self.pixels)

    def enlarged(self, rng: np.random.Generator) -> Image.Image:
        """Return the image enlarged (bicubic) to a random side within ``SIDES``."""
        side = int(rng.integers(SIDES[0], SIDES[1] + 1))
        return self.raw().resize((side, side), Image.Resampling.BICUBIC)


def labelled_images(held_out: bool) -> Iterator[Labelled]:
    """Yield all images of the training or the held-out split, digits and faces, in the order of the packages.

    Raises:
        DataError: a package that contains them is not installed.
    """
    counts: dict[str, int] = {}
    for image in (*_faces(), *_digits()):
        counts[image.label] = counts.get(image.label, 0) + 1
        if (counts[image.label] % HELD_OUT_EVERY == 0) == held_out:
            yield image


def _digits() -> Iterator[Labelled]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise DataError("scikit-learn, which carries the digits, is not installed", hint=_INSTALL) from error
    digits = load_digits()
    for pixels, digit in zip(digits.images, digits.target, strict=True):
        grey = np.round(pixels * (255 / 16)).astype(np.uint8)  # the data set's range is 0..16
        yield Labelled(grey, f"digit_{digit}", f"the handwritten digit {digit}")


def _faces() -> Iterator[Labelled]:
    try:
        import skimage
    except ModuleNotFoundError as error:
        raise DataError("scikit-image, which carries the faces, is not installed", hint=_INSTALL) from error
    # Read by path: functions of skimage.data may download files that are already installed.
    images = np.load(Path(skimage.__file__).parent / "data" / "lfw_subset.npy", allow_pickle=False)
    for number, pixels in enumerate(images):
        face = number < 100  # by its documentation: 100 faces, then 100 patches without a face
        grey = np.round(pixels * 255).astype(np.uint8)
        yield Labelled(grey, "face" if face else "not_face", "a face" if face else "a patch that shows no face")
