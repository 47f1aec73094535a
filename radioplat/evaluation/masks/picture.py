"""A picture of held-out images, their masks and the predictions of each model's decoder, side by side."""

from __future__ import annotations

import colorsys

import numpy as np
import torch

from radioplat.evaluation.masks.mask_reader import IGNORE
from radioplat.evaluation.masks.segmentation import Answers
from radioplat.evaluation.pictures.pca import panel

_GOLDEN = 0.618033988749895  # of a turn between the hues of consecutive classes, which makes all hues differ


def answers_panel(answers: Answers) -> bytes:
    """Return a PNG with a row per image: views, mask, and a column per model; pixels without a class are grey."""
    titles = ("image",) if len(answers.images) == 1 else ("before", "after")
    columns = {t: _upright(pixels) for t, pixels in zip(titles, answers.images, strict=True)}
    columns["truth"] = coloured(answers.masks, answers.classes)
    columns |= {name: coloured(answer, answers.classes) for name, answer in answers.by_model.items()}
    return panel(columns, photographs=set(titles))


def coloured(classes: torch.Tensor, count: int) -> np.ndarray:
    """Return classes uint8 ``[N, S, S]`` as colours uint8 ``[N, S, S, 3]``: class 0 is black, ``IGNORE`` grey."""
    table = np.full((256, 3), 128, np.uint8)
    table[0] = 0
    for i in range(1, count):
        table[i] = np.round(np.array(colorsys.hsv_to_rgb(i * _GOLDEN % 1, 0.75, 1.0)) * 255)
    table[IGNORE] = 128
    return table[classes.numpy()]


def _upright(pixels: torch.Tensor) -> np.ndarray:
    return pixels.numpy().transpose(0, 2, 3, 1)
