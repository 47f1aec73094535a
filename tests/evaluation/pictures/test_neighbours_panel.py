import io

import numpy as np
from PIL import Image

from radioplat.evaluation.pictures.neighbours_panel import neighbours_panel

GREY = np.full((2, 3, 32, 32), 128, np.uint8)


def drawn(same):
    near = {"a": np.repeat(GREY[:, None], 3, axis=1), "b": np.repeat(GREY[:, None], 3, axis=1)}
    return np.asarray(Image.open(io.BytesIO(neighbours_panel(GREY, near, same))).convert("RGB")).astype(int)


def coloured(pixels, channel):
    """Pixels of which one channel stands out."""
    others = np.delete(pixels, channel, axis=2).max(axis=2)
    return int((pixels[..., channel] > others + 40).sum())


def test_a_neighbour_of_another_class_is_red_and_struck_through():
    right = np.ones((2, 3), bool)
    one_wrong = right.copy()
    one_wrong[0, 1] = False
    all_right, marked = drawn({"a": right, "b": right}), drawn({"a": right, "b": one_wrong})
    assert coloured(all_right, 0) == 0 and coloured(all_right, 1) > 0
    frame = coloured(all_right, 1) / 12  # green pixels of one of twelve neighbours
    assert coloured(all_right, 1) - coloured(marked, 1) < 1.2 * frame
    assert coloured(marked, 0) > 1.1 * frame  # the frame, and the stroke


def test_without_labels_there_is_no_frame_and_photographs_keep_their_proportions():
    plain = drawn(None)
    assert coloured(plain, 0) == coloured(plain, 1) == 0
    grey = (plain == 128).all(axis=2)
    rows, columns = grey.any(axis=1), grey.any(axis=0)
    assert abs(columns.sum() / (7 * rows.sum() / 2) - 1) < 0.05  # seven squares wide, two high
