"""Real photographs in installed packages, each split into a training part and a held-out part."""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from radioplat.errors import DataError

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels
Range = tuple[float, float]

# Pixels between the two parts of a photograph: more than a JPEG block, so that the parts are independent.
GAP = 16
HELD_OUT_SHARE = 0.35
SHORT_SIDES = (96, 224)  # range of the short side of a crop, pixels
SHAPES = (0.6, 1.7)  # range of width / height of a crop
HUE_TURN = 2 * np.pi / 18  # maximum change of hue in radians, in both directions
SATURATION, CONTRAST, EXPOSURE = (0.6, 1.3), (0.75, 1.3), (0.7, 1.4)
GREY_SHARE = 0.1  # share of the crops that are grey

_RGB_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])


@dataclass(frozen=True)
class Photograph:
    """A photographed scene.

    Attributes:
        name: the label of its crops.
        files: its images, ``package:path inside the package``; several files show the same scene.
        caption: description of the scene.
        split: the axis along which it is split into training part and held-out part, ``x`` or ``y``; chosen so that
            both parts show something of the scene's subject.
    """

    name: str
    files: tuple[str, ...]
    caption: str
    split: str

    def open(self) -> list[Image.Image]:
        """Return RGB images, one for each file.

        Raises:
            DataError: the package that contains them is not installed.
        """
        return [_open(file) for file in self.files]

    def parts(self, image: Image.Image) -> tuple[Box, Box]:
        """Return the boxes of the training part and the held-out part, which share no pixel.

        The held-out part of one file also shows nothing that the training part of another file of the scene shows: the
        stereo pair is split by rows, because rows of rectified images correspond.
        """
        width, height = image.size
        if self.split == "x":
            cut = round(width * (1 - HELD_OUT_SHARE))
            return (0, 0, cut - GAP // 2, height), (cut + GAP // 2, 0, width, height)
        cut = round(height * (1 - HELD_OUT_SHARE))
        return (0, 0, width, cut - GAP // 2), (0, cut + GAP // 2, width, height)


def _skimage(name: str, file: str, caption: str, split: str) -> Photograph:
    return Photograph(name, (f"skimage:data/{file}",), caption, split)


PHOTOGRAPHS = (
    _skimage("astronaut", "astronaut.png", "an astronaut in an orange suit before a flag", "y"),
    _skimage("brick", "brick.png", "a brick wall", "x"),
    _skimage("camera", "camera.png", "a man with a camera on a tripod", "y"),
    _skimage("cell", "cell.png", "a cell in a microscope's hologram", "x"),
    _skimage("chelsea", "chelsea.png", "the face of a tabby cat", "x"),
    _skimage("coffee", "coffee.png", "a cup of coffee on a saucer", "x"),
    _skimage("coins", "coins.png", "Greek coins from Pompeii", "x"),
    _skimage("grass", "grass.png", "a lawn from above", "x"),
    _skimage("gravel", "gravel.png", "gravel from above", "x"),
    _skimage("hubble", "hubble_deep_field.jpg", "galaxies in the Hubble deep field", "x"),
    _skimage("ihc", "ihc.png", "stained tissue under a microscope", "x"),
    _skimage("moon", "moon.png", "the surface of the Moon", "y"),
    Photograph(
        "motorcycle",
        ("skimage:data/motorcycle_left.png", "skimage:data/motorcycle_right.png"),
        "a red motorcycle in a garage",
        "y",
    ),
    _skimage("page", "page.png", "a printed page", "x"),
    _skimage("retina", "retina.jpg", "the back of an eye", "x"),
    _skimage("rocket", "rocket.jpg", "a rocket on its launch pad at dusk", "x"),
    _skimage("text", "text.png", "handwriting on ruled paper", "x"),
    Photograph("china", ("sklearn:datasets/images/china.jpg",), "a Chinese temple above a lake", "y"),
    Photograph("flower", ("sklearn:datasets/images/flower.jpg",), "an orange dahlia", "x"),
    Photograph(
        "grace_hopper",
        ("matplotlib:mpl-data/sample_data/grace_hopper.jpg",),
        "a woman in a navy uniform before a flag",
        "x",
    ),
)


def crops(photograph: Photograph, held_out: bool, count: int, seed: int) -> Iterator[Image.Image]:
    """Yield ``count`` RGB crops of one part of a photograph, with random position, size, shape and colours.

    Exposure, contrast, hue and saturation are random, some crops are grey, and half of them are mirrored, so that a
    network cannot identify the photograph by the colour of a patch. The same arguments give the same crops.
    """
    rng = np.random.default_rng([seed, held_out, zlib.crc32(photograph.name.encode())])
    images = photograph.open()
    for number in range(count):
        image = images[number % len(images)]
        box = random_box(photograph.parts(image)[int(held_out)], SHORT_SIDES, SHAPES, rng)
        yield relight(image.crop(box), rng)


def misfits(photograph: Photograph, count: int, seed: int) -> Iterator[Image.Image]:
    """Yield ``count`` images of the training part that a resolution filter should reject.

    They are in turn thumbnails of 20 to 60 pixels, and strips at least 3.2 times as wide as high.
    """
    rng = np.random.default_rng([seed, 2, zlib.crc32(photograph.name.encode())])
    image = photograph.open()[0]
    part = image.crop(photograph.parts(image)[0])
    for number in range(count):
        if number % 2 == 0:
            thumbnail = part.copy()
            thumbnail.thumbnail((int(rng.integers(20, 61)),) * 2, Image.Resampling.LANCZOS)
            yield thumbnail
        else:
            height = int(part.width / rng.uniform(3.2, 6.0))
            top = int(rng.integers(0, max(1, part.height - height)))
            yield part.crop((0, top, part.width, top + height))


def random_box(part: Box, short_sides: Range, shapes: Range | None, rng: np.random.Generator) -> Box:
    """Return a random box within ``part``; smaller where it would not fit.

    Args:
        short_sides: range of its short side, pixels.
        shapes: range of width / height; None for a square.
    """
    left, top, right, bottom = part
    shape = 1.0 if shapes is None else float(np.exp(rng.uniform(*np.log(shapes))))
    short = rng.uniform(*short_sides)
    width, height = (short * shape, short) if shape > 1 else (short, short / shape)
    shrink = min(1.0, (right - left) / width, (bottom - top) / height)
    width, height = int(width * shrink), int(height * shrink)
    x, y = int(rng.integers(left, right - width + 1)), int(rng.integers(top, bottom - height + 1))
    return x, y, x + width, y + height


def relight(
    image: Image.Image, rng: np.random.Generator, contrasts: Range = CONTRAST, exposures: Range = EXPOSURE
) -> Image.Image:
    """Mirror the image at random, and apply all colour changes as one affine map of RGB (one pass over the pixels)."""
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    turn = rng.uniform(-HUE_TURN, HUE_TURN)
    saturation = 0.0 if rng.random() < GREY_SHARE else rng.uniform(*SATURATION)
    contrast, exposure = rng.uniform(*contrasts), rng.uniform(*exposures)
    chroma = saturation * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    in_yiq = np.block([[np.ones((1, 1)), np.zeros((1, 2))], [np.zeros((2, 1)), chroma]])
    linear = exposure * contrast * (np.linalg.inv(_RGB_TO_YIQ) @ in_yiq @ _RGB_TO_YIQ)
    offset = np.full((3, 1), exposure * (1 - contrast) * 128)  # contrast is relative to middle grey
    return image.convert("RGB", tuple(np.hstack([linear, offset]).ravel().tolist()))


def _open(file: str) -> Image.Image:
    package, _, inside = file.partition(":")
    try:
        path = Path(importlib.import_module(package).__file__ or "").parent / inside
        return Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise DataError(
            f"the installed {package} does not carry this photograph",
            where=file,
            hint="pip install 'radioplat[quickstart]'",
        ) from error
