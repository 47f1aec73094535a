"""A detection set with exact boxes: objects cut out of real photographs, pasted on pieces of others.

Classes are a cat's head, an astronaut's head, coins and a horse (a silhouette filled with a texture), all out of
scikit-image. Backgrounds are pieces of photographs: training images take the left parts, held-out images the right
ones, so that no background pixel is in both. Each object is drawn in size, turn, mirror and light; a box is the extent
of what stays visible of it. Some images have no object.

    python -m benchmarks.composites FOLDER [train images] [held-out images] [pixels a side]
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import skimage
import sklearn.datasets
from PIL import Image, ImageEnhance

CLASSES = ("cat", "astronaut", "coin", "horse")
_SKIMAGE = Path(skimage.__file__).parent / "data"
_SKLEARN = Path(sklearn.datasets.__file__).parent / "images"
_BACKGROUNDS = (
    _SKIMAGE / "coffee.png",
    _SKIMAGE / "rocket.jpg",
    _SKIMAGE / "motorcycle_left.png",
    _SKIMAGE / "hubble_deep_field.jpg",
    _SKIMAGE / "ihc.png",
    _SKLEARN / "china.jpg",
    _SKLEARN / "flower.jpg",
)
# Middle and half sides of the ellipse of each object in its photograph, pixels: columns, rows.
_HEADS = {"cat": ("chelsea.png", (230, 140, 115, 110)), "astronaut": ("astronaut.png", (222, 115, 62, 85))}
_COINS = ((347, 186, 31), (335, 43, 28), (46, 260, 28), (173, 261, 27), (301, 263, 25))  # column, row, radius
EMPTY = 0.08  # share of images without an object
_VISIBLE = 0.5  # of an object's pixels, below which it is taken away again


@cache
def cutouts() -> dict[str, list[Image.Image]]:
    """RGBA pictures of each class, cut to their extent."""
    found: dict[str, list[Image.Image]] = {}
    for name, (file, (x, y, half_x, half_y)) in _HEADS.items():
        found[name] = [_ellipse(_rgb(_SKIMAGE / file), x, y, half_x, half_y)]
    coins = _rgb(_SKIMAGE / "coins.png")
    found["coin"] = [_ellipse(coins, x, y, radius, radius) for x, y, radius in _COINS]
    silhouette = np.asarray(Image.open(_SKIMAGE / "horse.png").convert("RGBA"))[..., :3].mean(-1) < 128
    rows, columns = np.flatnonzero(silhouette.any(1)), np.flatnonzero(silhouette.any(0))
    mask = silhouette[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    texture = _rgb(_SKIMAGE / "brick.png").resize(mask.shape[::-1])
    found["horse"] = [Image.fromarray(np.dstack([np.asarray(texture), mask.astype(np.uint8) * 255]))]
    return {name: found[name] for name in CLASSES}


def compose(seed: int, held_out: bool, side: int = 96) -> tuple[Image.Image, list[tuple[list[float], int]]]:
    """One image, and left, top, width, height and class of each object in it."""
    rng = np.random.default_rng([seed, int(held_out)])
    canvas = np.asarray(_background(rng, held_out, side)).astype(np.float64)
    layers: list[tuple[np.ndarray, int]] = []  # where each object covers, and its class
    for _ in range(0 if rng.random() < EMPTY else rng.integers(1, 5)):
        label = int(rng.integers(len(CLASSES)))
        thing = _drawn(rng, label, side)
        x, y = (int(rng.integers(-edge // 5, side - edge + edge // 5 + 1)) for edge in thing.size)
        placed = Image.new("RGBA", (side, side))
        placed.paste(thing, (x, y))
        pixels = np.asarray(placed).astype(np.float64)
        cover = pixels[..., 3] >= 128
        left = [(mask & ~cover, other, mask) for mask, other in layers]
        # Of one that would hide another, or is mostly outside, there is nothing.
        if cover.sum() < _VISIBLE * _opaque(thing) or any(s.sum() < 0.8 * m.sum() for s, _, m in left):
            continue
        layers = [(seen, other) for seen, other, _ in left] + [(cover, label)]
        share = pixels[..., 3:] / 255
        canvas = canvas * (1 - share) + pixels[..., :3] * share
    noise = rng.normal(0, 4, canvas.shape)
    image = Image.fromarray(np.clip(canvas + noise, 0, 255).astype(np.uint8))
    return image, [(_extent(mask), label) for mask, label in layers]


def write_set(folder: Path, count: int, held_out: bool, side: int = 96, seed: int = 0) -> tuple[Path, Path]:
    """Write ``count`` images and their COCO-format file; a set of another ``seed`` has other images.

    Returns:
        The folder of the images, and the file of their annotations.
    """
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    content: dict[str, list] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": i + 1, "name": name} for i, name in enumerate(CLASSES)],
    }
    for number in range(count):
        image, objects = compose(seed * 1_000_000 + number, held_out, side)
        name = f"{number:05d}.png"
        image.save(images / name)
        content["images"].append({"id": number, "file_name": name, "width": side, "height": side})
        for box, label in objects:
            note = {"id": len(content["annotations"]) + 1, "image_id": number, "category_id": label + 1, "bbox": box}
            content["annotations"].append(note | {"area": box[2] * box[3], "iscrowd": 0})
    annotations = folder / "annotations.json"
    annotations.write_text(json.dumps(content))
    return images, annotations


def _rgb(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def _ellipse(image: Image.Image, x: int, y: int, half_x: int, half_y: int) -> Image.Image:
    cut = np.asarray(image)[max(0, y - half_y) : y + half_y, max(0, x - half_x) : x + half_x]
    rows, columns = np.mgrid[: cut.shape[0], : cut.shape[1]] + 0.5
    inside = ((columns - cut.shape[1] / 2) / half_x) ** 2 + ((rows - cut.shape[0] / 2) / half_y) ** 2 <= 1
    return Image.fromarray(np.dstack([cut, inside.astype(np.uint8) * 255]))


@cache
def _background_halves(held_out: bool) -> list[Image.Image]:
    found = []
    for path in _BACKGROUNDS:
        image = _rgb(path)
        middle = image.width // 2
        found.append(image.crop((middle, 0, image.width, image.height) if held_out else (0, 0, middle, image.height)))
    return found


def _background(rng: np.random.Generator, held_out: bool, side: int) -> Image.Image:
    halves = _background_halves(held_out)
    image = halves[rng.integers(len(halves))]
    edge = int(rng.uniform(0.4, 1.0) * min(image.size))
    x, y = (int(rng.integers(limit - edge + 1)) for limit in image.size)
    return image.crop((x, y, x + edge, y + edge)).resize((side, side), Image.Resampling.BILINEAR)


def _drawn(rng: np.random.Generator, label: int, side: int) -> Image.Image:
    choices = cutouts()[CLASSES[label]]
    thing = choices[rng.integers(len(choices))]
    if rng.random() < 0.5:
        thing = thing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    longest = rng.uniform(0.22, 0.5) * side
    scale = longest / max(thing.size)
    thing = thing.resize([max(4, round(edge * scale)) for edge in thing.size], Image.Resampling.BILINEAR)
    thing = thing.rotate(rng.uniform(-20, 20), Image.Resampling.BILINEAR, expand=True)
    colours = ImageEnhance.Brightness(thing.convert("RGB")).enhance(rng.uniform(0.7, 1.3))
    colours.putalpha(thing.getchannel("A"))
    return colours


def _opaque(thing: Image.Image) -> int:
    return int((np.asarray(thing)[..., 3] >= 128).sum())


def _extent(mask: np.ndarray) -> list[float]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [float(v) for v in (columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0])]


if __name__ == "__main__":
    folder, train, held, side = [*sys.argv[1:], *("600", "150", "96")[len(sys.argv) - 2 :]]
    write_set(Path(folder) / "train", int(train), False, int(side))
    write_set(Path(folder) / "val", int(held), True, int(side))
