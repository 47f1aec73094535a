"""Images with exact masks, and pairs with exact changes: textures pasted on photographs of installed packages.

``python -m benchmarks.tasks_pixels FOLDER [COUNT]`` makes ``COUNT`` (160) of each, every fourth for ``val``:

- ``FOLDER/segmentation/{train,val}/{images,masks}``: one to three shapes of other textures on a photograph; class 0 is
  the photograph, 1 to 4 the texture (brick, grass, gravel, coins).
- ``FOLDER/change/{train,val}/{A,B,label}``: a piece of a photograph, and the same lit otherwise with one or two such
  shapes on it; masks of 0 and 255, as in LEVIR-CD.

The photograph of held-out images is another than those of training images; textures are the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image

SIDE = 160  # pixels
TEXTURES = (skimage.data.brick, skimage.data.grass, skimage.data.gravel, skimage.data.coins)
TRAINING = (skimage.data.astronaut, skimage.data.coffee, skimage.data.rocket)
HELD_OUT = (skimage.data.chelsea,)


def main() -> None:
    """Write them."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 160
    for i in range(count):
        held_out = i % 4 == 3
        split = "val" if held_out else "train"
        rng = np.random.default_rng(i)
        sets = HELD_OUT if held_out else TRAINING
        photograph = sets[i % len(sets)]()
        for kind, made in (("segmentation", composite(photograph, rng)), ("change", pair(photograph, rng))):
            for name, pixels in made.items():
                path = folder / kind / split / name / f"{i:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)


def composite(photograph: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``images`` uint8 ``[SIDE, SIDE, 3]`` and ``masks`` uint8 ``[SIDE, SIDE]``."""
    image, mask = _crop(photograph, rng), np.zeros((SIDE, SIDE), np.uint8)
    for _ in range(int(rng.integers(1, 4))):
        label = int(rng.integers(len(TEXTURES)))
        shape = _shape(rng)
        image[shape], mask[shape] = _texture(label, rng)[shape], label + 1
    return {"images": image, "masks": mask}


def pair(photograph: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``A``, ``B`` uint8 ``[SIDE, SIDE, 3]`` and ``label``, 255 where something was pasted."""
    before, mask = _crop(photograph, rng), np.zeros((SIDE, SIDE), np.uint8)
    after = np.clip(before * rng.uniform(0.7, 1.3, 3), 0, 255).astype(np.uint8)
    for _ in range(int(rng.integers(1, 3))):
        shape = _shape(rng)
        after[shape], mask[shape] = _texture(int(rng.integers(len(TEXTURES))), rng)[shape], 255
    return {"A": before, "B": after, "label": mask}


def _crop(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    top, left = (int(rng.integers(0, limit - SIDE + 1)) for limit in picture.shape[:2])
    return picture[top : top + SIDE, left : left + SIDE].copy()


def _texture(label: int, rng: np.random.Generator) -> np.ndarray:
    """In a colour of chance: the texture tells the class, not the colour."""
    grey = _crop(TEXTURES[label](), rng)
    return np.clip(grey[..., None] * rng.uniform(0.5, 1.2, 3), 0, 255).astype(np.uint8)


def _shape(rng: np.random.Generator) -> np.ndarray:
    """bool ``[SIDE, SIDE]``: a disc or a turned rectangle."""
    y, x = np.mgrid[:SIDE, :SIDE] - rng.uniform(0.2 * SIDE, 0.8 * SIDE, (2, 1, 1))
    if rng.random() < 0.5:
        return x**2 + y**2 < rng.uniform(18, 36) ** 2
    angle = rng.uniform(0, np.pi)
    u, v = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    return (abs(u) < rng.uniform(16, 40)) & (abs(v) < rng.uniform(16, 40))


if __name__ == "__main__":
    main()
