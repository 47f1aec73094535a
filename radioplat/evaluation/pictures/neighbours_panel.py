"""A picture of held-out images and the training images nearest to them, model by model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from radioplat.evaluation.pictures.pca import panel

_FRAME, _GAP = 0.05, 0.04  # of an image's side
_SAME, _OTHER, _WHITE = (26, 127, 55), (190, 30, 45), (255, 255, 255)


def neighbours_panel(
    images: np.ndarray, nearest: Mapping[str, np.ndarray], same: Mapping[str, np.ndarray] | None
) -> bytes:
    """Return a PNG: one row per held-out image, one column per model with its nearest images from left to right.

    A neighbour of the same label has a green frame, one of another label a red frame and a stroke through it.

    Args:
        images: uint8 ``[N, 3, S, S]``.
        nearest: by model, uint8 ``[N, k, 3, S, S]``, nearest first.
        same: by model, bool ``[N, k]``: whether a neighbour has the label of the image; None draws no frames.
    """
    columns = {"held out": images.transpose(0, 2, 3, 1)}
    for name, near in nearest.items():
        frames = [None] * len(near) if same is None else same[name]
        columns[name] = np.stack([_strip(*each) for each in zip(near, frames, strict=True)])
    return panel(columns, photographs=columns, cell=1.0)


def _strip(images: np.ndarray, same: np.ndarray | None) -> np.ndarray:
    """Return images ``[k, 3, S, S]`` side by side, ``[S, W, 3]``."""
    size = images.shape[-1]
    gap = np.full((size, max(1, round(size * _GAP)), 3), 255, np.uint8)
    parts: list[np.ndarray] = []
    for n, image in enumerate(images.transpose(0, 2, 3, 1)):
        parts += [gap] if n else []
        parts.append(image if same is None else _framed(image, bool(same[n])))
    return np.concatenate(parts, axis=1)


def _framed(image: np.ndarray, same: bool) -> np.ndarray:
    """Return an image with a frame within its borders."""
    framed, size = image.copy(), len(image)
    width = max(2, round(size * _FRAME))
    colour = _SAME if same else _OTHER
    if not same:
        across = np.abs(np.subtract.outer(np.arange(size), np.arange(size)[::-1]))
        framed[across <= width] = _WHITE
        framed[across <= width // 2] = colour
    framed[:width], framed[-width:], framed[:, :width], framed[:, -width:] = colour, colour, colour, colour
    return framed
