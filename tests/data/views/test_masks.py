"""A mask goes where its image goes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.images.decode import Decoded
from radioplat.data.views.crops import Box, Crop
from radioplat.data.views.masks import view_mask
from radioplat.data.views.render import render, view_matrix

OUTSIDE = 255


def some_mask(seed, height, width):
    return np.random.default_rng(seed).integers(0, 5, (height, width)).astype(np.uint8)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31 - 1), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.booleans(),
    st.sampled_from([0.0, 90.0, 180.0, 270.0]),
)  # fmt: skip
def test_flips_and_quarter_turns_of_a_square_lose_nothing(seed, side, left, hflip, vflip, angle):
    mask = some_mask(seed, side + 7, side + left)
    crop = Crop(Box(left, 7, left + side, 7 + side), hflip, vflip, angle)
    shown = view_mask(mask, view_matrix(crop.matrix(), side), side, OUTSIDE)
    # As the image is shown, whose pixels are the same numbers.
    image = Decoded(np.repeat(mask[..., None], 3, 2), mask.shape[1], mask.shape[0], 1)
    pixels, valid = render(image, view_matrix(crop.matrix(), side), side)
    assert valid is None and np.array_equal(shown, pixels[..., 0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(2, 30), st.integers(2, 30), st.integers(1, 5))
def test_enlarged_each_pixel_becomes_a_square(seed, height, width, times):
    side, mask = min(height, width), some_mask(seed, height, width)
    shown = view_mask(mask, view_matrix(Crop(Box(0, 0, side, side)).matrix(), side * times), side * times, OUTSIDE)
    assert np.array_equal(shown, mask[:side, :side].repeat(times, 0).repeat(times, 1))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.floats(-180, 180), st.floats(-0.002, 0.002), st.integers(3, 40))
def test_any_homography_is_looked_up_at_the_centre_of_each_pixel(seed, angle, tilt, size):
    mask = some_mask(seed, 31, 47)
    matrix = view_matrix(Crop(Box(5, 3, 50, 28), angle=angle).matrix(), size)
    matrix = np.array([[1, 0, 0], [0, 1, 0], [tilt, tilt, 1.0]]) @ matrix
    shown = view_mask(mask, matrix, size, OUTSIDE)
    for row in range(0, size, 3):
        for column in range(0, size, 3):
            x, y, w = matrix @ (column + 0.5, row + 0.5, 1)
            at = np.floor(y / w + 1e-6), np.floor(x / w + 1e-6)
            inside = w > 0 and 0 <= at[0] < 31 and 0 <= at[1] < 47
            assert shown[row, column] == (mask[int(at[0]), int(at[1])] if inside else OUTSIDE)
