"""Views show what their homography says, whichever way they are made."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from radioplat.data.images.decode import Decoded, decode_rgb
from radioplat.data.views.crops import Box, Crop, centre_crop
from radioplat.data.views.equivariance import quadrilateral
from radioplat.data.views.render import reduction, render, view_matrix
from radioplat.quickstart.photographs import PHOTOGRAPHS

PSNR = 36.0  # dB, the least mean over photographs; see docs/measurements/performance.md


def seen_coordinates(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Source x and y that the view's red and green encode: [S, S, 2]."""
    return pixels[..., :2] / 255 * (width, height)


def mapped_centres(h: np.ndarray, size: int) -> np.ndarray:
    """Where a homography maps the centres of a view's pixels: [S, S, 2]."""
    y, x = np.mgrid[:size, :size] + 0.5
    out = np.stack([x, y, np.ones_like(x)], -1) @ h.T
    return out[..., :2] / out[..., 2:]


@given(
    st.integers(60, 300), st.integers(60, 300), st.integers(8, 64), st.booleans(), st.booleans(),
    st.sampled_from([0, 90, 180, 270]), st.tuples(*[st.floats(0, 1)] * 4),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_an_image_of_its_own_coordinates_is_seen_where_the_homography_says(
    coordinates, width, height, size, hflip, vflip, angle, place
):
    w, h = 20 + place[0] * (width - 20), 20 + place[1] * (height - 20)
    left, top = place[2] * (width - w), place[3] * (height - h)
    matrix = view_matrix(Crop(Box(left, top, left + w, top + h), hflip, vflip, angle).matrix(), size)
    pixels, valid = render(Decoded(coordinates(width, height), width, height), matrix, size)
    assert pixels.shape == (size, size, 3) and pixels.dtype == np.uint8 and valid is None
    inner = slice(2, -2)  # at the border the filter sees only one side
    error = np.abs(seen_coordinates(pixels, width, height) - mapped_centres(matrix, size))[inner, inner]
    assert error[..., 0].max() < 1 + width / 255 and error[..., 1].max() < 1 + height / 255
    assert error[..., 0].mean() < 0.6 * (1 + width / 255)


@given(
    st.integers(80, 300), st.integers(80, 300), st.integers(16, 64), st.floats(0, 360), st.booleans(),
    st.lists(st.floats(-0.15, 0.15), min_size=8, max_size=8),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_a_warped_view_is_where_its_homography_says_and_masked_where_it_leaves_the_image(
    coordinates, width, height, size, angle, hflip, jitter
):
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) + np.reshape(jitter, (4, 2))
    matrix = view_matrix(Crop(Box(0, 0, width, height), hflip, False, angle).matrix(), size, quadrilateral(square))
    pixels, valid = render(Decoded(coordinates(width, height), width, height), matrix, size)
    centres = mapped_centres(matrix, size)
    inside = ((centres >= 0) & (centres <= (width, height))).all(-1)
    assert (inside if valid is None else valid == inside).all()
    error = np.abs(seen_coordinates(pixels, width, height) - centres)
    step = max(width, height) / size
    deep = ((centres > 3 + 3 * step) & (centres < (width - 3 - 3 * step, height - 3 - 3 * step))).all(-1)
    if deep.any():
        assert error[deep].max() < 1.5 + step + max(width, height) / 255


@given(st.lists(st.floats(-0.2, 0.2), min_size=8, max_size=8))
def test_a_quadrilateral_goes_through_its_corners(jitter):
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) + np.reshape(jitter, (4, 2))
    mapped = np.array([[0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]]) @ quadrilateral(corners).T
    np.testing.assert_allclose(mapped[:, :2] / mapped[:, 2:], corners, atol=1e-9)


def test_reduction_is_the_finest_step():
    assert reduction(view_matrix(Crop(Box(0, 0, 640, 480)).matrix(), 64), 64) == pytest.approx(7.5)
    assert reduction(view_matrix(Crop(Box(0, 0, 640, 480), angle=90).matrix(), 64), 64) == pytest.approx(7.5)
    window = quadrilateral(np.array([[0.1, 0.2], [0.9, 0.1], [1, 1], [0, 0.8]]))
    matrix = view_matrix(Crop(Box(0, 0, 640, 480)).matrix(), 64, window)
    steps = np.stack([np.linalg.norm(np.diff(mapped_centres(matrix, 64), axis=a), axis=-1).min() for a in (0, 1)])
    assert reduction(matrix, 64) == pytest.approx(steps.min(), rel=0.02)


@pytest.mark.parametrize("width, height", [(640, 480), (641, 483)])
def test_a_scaled_jpeg_shows_the_same_place_as_the_whole_one(coordinates, width, height):
    buffer = io.BytesIO()
    Image.fromarray(coordinates(width, height)).save(buffer, "JPEG", quality=98, subsampling=0)
    matrix = view_matrix(Crop(Box(60, 40, 600, 460), True, False).matrix(), 48)
    whole = decode_rgb(buffer.getvalue())
    small = decode_rgb(buffer.getvalue(), reduction(matrix, 48))
    assert (whole.factor, small.factor) == (1, 8)
    a, b = render(whole, matrix, 48)[0], render(small, matrix, 48)[0]
    assert np.abs(a.astype(int) - b).max() <= 3
    assert np.abs(seen_coordinates(b, width, height) - mapped_centres(matrix, 48)).mean() < 1.5


def test_scaled_decoding_agrees_with_pillow_on_photographs():
    found = []
    for photograph in PHOTOGRAPHS[::3]:
        scene = photograph.open()[0].resize((900, 700), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        scene.save(buffer, "JPEG", quality=90)
        for side in (224, 96):
            box = Box(31, 17, 31 + 660, 17 + 540)
            matrix = view_matrix(Crop(box).matrix(), side)
            small = decode_rgb(buffer.getvalue(), reduction(matrix, side), fast=True)
            assert small.factor == (2 if side == 224 else 4)
            whole = Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")
            expected = np.asarray(whole.resize((side, side), Image.Resampling.BILINEAR, box=box), float)
            found.append(10 * np.log10(255**2 / np.mean((render(small, matrix, side)[0] - expected) ** 2)))
    assert np.mean(found) > PSNR and min(found) > PSNR - 8, found


def test_fast_arithmetic_stays_close(photo):
    data = photo(300, 240, name="chelsea.png", quality=90)
    a, b = (decode_rgb(data, fast=fast).rgb.astype(float) for fast in (False, True))
    assert 0 < np.mean((a - b) ** 2) < 255**2 * 10**-3.5


def test_without_scaling_the_pixels_are_pillow_s():
    scene = PHOTOGRAPHS[4].open()[0]
    box = Box(20.25, 10.5, 400.0, 280.75)
    matrix = view_matrix(Crop(box).matrix(), 112)
    got = render(Decoded(np.asarray(scene), *scene.size), matrix, 112)[0]
    part = scene.crop((20, 10, 400, 281)).resize((112, 112), Image.Resampling.BILINEAR, box=(0.25, 0.5, 380, 270.75))
    assert np.abs(got.astype(int) - np.asarray(part)).max() <= 1


def test_a_view_of_the_whole_at_its_own_size_is_the_image(coordinates):
    rgb = coordinates(32, 32)
    image = Decoded(rgb, 32, 32)
    matrix = view_matrix(centre_crop(32, 32).matrix(), 32)
    assert (render(image, matrix, 32)[0] == rgb).all() and (matrix == np.eye(3)).all()
    for crop, expected in (
        (Crop(Box(0, 0, 32, 32), True, True), rgb[::-1, ::-1]),
        (Crop(Box(0, 0, 32, 32), angle=90), np.rot90(rgb)),
        (Crop(Box(0, 0, 32, 32), angle=270), np.rot90(rgb, -1)),
        (Crop(Box(0, 0, 32, 32), True, False, 90), np.rot90(rgb[:, ::-1])),
    ):
        assert (render(image, view_matrix(crop.matrix(), 32), 32)[0] == expected).all()


def test_the_homography_composes_to_feature_cells():
    matrix = view_matrix(Crop(Box(10, 20, 74, 84)).matrix(), 32)
    assert (matrix @ [16, 16, 1]).tolist() == [42, 52, 1]  # the middle of the view is the middle of the box


def test_a_view_beside_the_image_is_black_and_nothing_of_it_valid(coordinates):
    pixels, valid = render(Decoded(coordinates(40, 40), 40, 40), view_matrix(Crop(Box(50, 50, 60, 60)).matrix(), 8), 8)
    assert not pixels.any() and valid is not None and not valid.any()
