"""Crops are keyed, views are where their homography says."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from radioplat.data.decode import Decoded, decode_rgb
from radioplat.data.views import (
    Box,
    Crop,
    centre_crop,
    homography,
    keyed,
    make_view,
    needed_size,
    plan_crop,
    refuse_unbuilt,
)
from radioplat.errors import SpecError
from radioplat.spec.dataset import AugmentationConfig, RandomCrop, RandomFlip, Switch

sides = st.integers(1, 700)


def seen_coordinates(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Source x and y that the view's red and green encode: [S, S, 2]."""
    return np.stack([pixels[0] / 255 * width, pixels[1] / 255 * height], -1)


def mapped_centres(h: np.ndarray, size: int) -> np.ndarray:
    """Where a homography maps the centres of a view's pixels: [S, S, 2]."""
    y, x = np.mgrid[:size, :size] + 0.5
    out = np.stack([x, y, np.ones_like(x)], -1) @ h.T
    return out[..., :2] / out[..., 2:]


@given(
    st.integers(60, 300), st.integers(60, 300), st.integers(8, 64), st.booleans(), st.booleans(),
    st.tuples(*[st.floats(0, 1)] * 4),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_an_image_of_its_own_coordinates_is_seen_where_the_homography_says(
    coordinates, width, height, size, hflip, vflip, place
):
    w, h = 20 + place[0] * (width - 20), 20 + place[1] * (height - 20)
    left, top = place[2] * (width - w), place[3] * (height - h)
    crop = Crop(Box(left, top, left + w, top + h), hflip, vflip)
    pixels, matrix = make_view(Decoded(coordinates(width, height), width, height), crop, size)
    assert pixels.shape == (3, size, size) and pixels.dtype == np.uint8 and matrix.dtype == np.float32
    inner = slice(2, -2)  # at the border the filter sees only one side
    error = np.abs(seen_coordinates(pixels, width, height) - mapped_centres(matrix, size))[inner, inner]
    assert error[..., 0].max() < 1 + width / 255 and error[..., 1].max() < 1 + height / 255
    assert error[..., 0].mean() < 0.6 * (1 + width / 255)


@pytest.mark.parametrize("width, height", [(640, 480), (641, 483)])
def test_a_scaled_jpeg_shows_the_same_place_as_the_whole_one(coordinates, width, height):
    buffer = io.BytesIO()
    Image.fromarray(coordinates(width, height)).save(buffer, "JPEG", quality=98, subsampling=0)
    crop = Crop(Box(60, 40, 600, 460), True, False)
    whole = decode_rgb(buffer.getvalue())
    small = decode_rgb(buffer.getvalue(), needed_size(width, height, crop.box, 48))
    assert (whole.factor, small.factor) == (1, 8)
    a, ha = make_view(whole, crop, 48)
    b, hb = make_view(small, crop, 48)
    assert (ha == hb).all() and np.abs(a.astype(int) - b).max() <= 3
    error = np.abs(seen_coordinates(b, width, height) - mapped_centres(hb, 48))
    assert error.mean() < 1.5


def test_a_view_of_the_whole_at_its_own_size_is_the_image(coordinates):
    rgb = coordinates(32, 32)
    pixels, matrix = make_view(Decoded(rgb, 32, 32), centre_crop(32, 32), 32)
    assert (pixels.transpose(1, 2, 0) == rgb).all() and (matrix == np.eye(3)).all()
    mirrored, _ = make_view(Decoded(rgb, 32, 32), Crop(Box(0, 0, 32, 32), True, True), 32)
    assert (mirrored.transpose(1, 2, 0) == rgb[::-1, ::-1]).all()


@given(sides, sides, st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_the_decoded_size_is_enough_for_the_view(width, height, size):
    box = plan_crop(width, height, AugmentationConfig(), 0, size).box
    w, h = needed_size(width, height, box, size)
    assert box.width * w / width >= size - 1e-6 and box.height * h / height >= size - 1e-6


@given(sides, sides, st.integers(0, 2**40), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_a_random_box_lies_inside_and_keeps_its_ranges(width, height, position, seed):
    augmentation = AugmentationConfig(random_crop=RandomCrop(scale_range=[0.3, 0.8], ratio_range=[0.5, 2.0]))
    crop = plan_crop(width, height, augmentation, seed, position)
    box = crop.box
    assert 0 <= box.left < box.right <= width and 0 <= box.top < box.bottom <= height
    assert crop == plan_crop(width, height, augmentation, seed, position)
    if min(width, height) > 100 and max(width, height) < 1.5 * min(width, height):
        assert 0.29 <= box.width * box.height / (width * height) <= 0.81
        assert 0.48 <= box.width / box.height <= 2.1


def test_an_elongated_image_falls_back_to_a_centred_box():
    crop = plan_crop(1000, 10, AugmentationConfig(), 0, 3)
    assert crop.box.height == 10 and crop.box.width == 13 and abs(crop.box.left + crop.box.right - 1000) <= 1


def test_areas_are_uniform_and_flips_have_their_probability():
    augmentation = AugmentationConfig(random_flip=RandomFlip(hflip_probability=0.25, vflip_probability=0.75))
    crops = [plan_crop(400, 400, augmentation, 7, p) for p in range(3000)]
    assert np.mean([c.hflip for c in crops]) == pytest.approx(0.25, abs=0.03)
    assert np.mean([c.vflip for c in crops]) == pytest.approx(0.75, abs=0.03)
    areas = np.array([c.box.width * c.box.height for c in crops]) / 400**2
    assert 0.24 < areas.min() and areas.max() <= 1.0 and 0.55 < areas.mean() < 0.65
    assert len({c.box for c in crops}) > 2900


def test_switches_are_honoured():
    off = AugmentationConfig(random_flip=RandomFlip(enable=False), with_random_crop=False)
    assert centre_crop(60, 40) == Crop(Box(10, 0, 50, 40))
    assert plan_crop(60, 40, off, 0, 5) == plan_crop(60, 40, None, 0, 5) == centre_crop(60, 40)


def test_keys_do_not_collide():
    draws = {keyed(seed, purpose, n).random() for seed in (0, 1) for purpose in ("crop", "flip") for n in range(50)}
    assert len(draws) == 200


def test_the_homography_composes_to_feature_cells():
    matrix = homography(Crop(Box(10, 20, 74, 84)), 32)
    assert (matrix @ [16, 16, 1]).tolist() == [42, 52, 1]  # the middle of the view is the middle of the box


def test_what_is_not_built_is_refused_by_field():
    refuse_unbuilt(AugmentationConfig())
    bad = AugmentationConfig(random_color=Switch(True), with_random_blur=True)
    bad.random_crop = RandomCrop(scale_range=[0.0, 2.0])
    with pytest.raises(SpecError) as caught:
        refuse_unbuilt(bad)
    assert [p.where for p in caught.value.problems] == [
        "dataset.augmentation.random_color.enable", "dataset.augmentation.with_random_blur",
        "dataset.augmentation.random_crop.scale_range",
    ]  # fmt: skip
