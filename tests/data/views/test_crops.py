"""Crops are keyed, inside the image, and drawn as they are said to be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.views.crops import Box, Crop, centre_crop, plan_crops
from radioplat.spec.schema.dataset import AugmentationConfig, RandomCrop, RandomFlip, RandomRotate, ScaleRandomCrop

sides = st.integers(1, 700)


def plan(width, height, augmentation, seed=0, start=0, count=1) -> list[Crop]:
    return plan_crops(
        np.full(count, width), np.full(count, height), augmentation, seed, np.arange(start, start + count)
    )


@given(sides, sides, st.integers(0, 2**40), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_a_random_box_lies_inside_and_keeps_its_ranges(width, height, position, seed):
    augmentation = AugmentationConfig(random_crop=RandomCrop(scale_range=[0.3, 0.8], ratio_range=[0.5, 2.0]))
    (crop,) = plan(width, height, augmentation, seed, position)
    box = crop.box
    assert 0 <= box.left < box.right <= width and 0 <= box.top < box.bottom <= height
    assert crop == plan(width, height, augmentation, seed, position - 1 if position else 0, 2)[min(position, 1)]
    if min(width, height) > 100 and max(width, height) < 1.5 * min(width, height):
        assert 0.29 <= box.width * box.height / (width * height) <= 0.81
        assert 0.48 <= box.width / box.height <= 2.1


def test_an_elongated_image_falls_back_to_a_centred_box():
    (crop,) = plan(1000, 10, AugmentationConfig(), 0, 3)
    assert crop.box.height == 10 and crop.box.width == 13 and abs(crop.box.left + crop.box.right - 1000) <= 1


def test_areas_are_uniform_and_flips_have_their_probability():
    augmentation = AugmentationConfig(random_flip=RandomFlip(hflip_probability=0.25, vflip_probability=0.75))
    crops = plan(400, 400, augmentation, 7, 0, 3000)
    assert np.mean([c.hflip for c in crops]) == pytest.approx(0.25, abs=0.03)
    assert np.mean([c.vflip for c in crops]) == pytest.approx(0.75, abs=0.03)
    areas = np.array([c.box.width * c.box.height for c in crops]) / 400**2
    assert 0.24 < areas.min() and areas.max() <= 1.0 and 0.55 < areas.mean() < 0.65
    assert len({c.box for c in crops}) > 2900


def test_turns_come_from_the_list_with_their_probability():
    augmentation = AugmentationConfig(random_rotate=RandomRotate(True, 0.6, [90.0, 15.0]))
    angles = np.array([c.angle for c in plan(90, 90, augmentation, 1, 0, 3000)])
    for angle, share in ((0, 0.4), (90, 0.3), (15, 0.3)):
        assert np.mean(angles == angle) == pytest.approx(share, abs=0.03)


@given(sides, sides, st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_a_scaled_crop_is_a_square_of_the_short_side_over_the_scale(width, height, start):
    augmentation = AugmentationConfig(with_scale_random_crop=ScaleRandomCrop(True, [1.0, 1.5]))
    box = plan(width, height, augmentation, 2, start)[0].box
    assert box.width == pytest.approx(box.height) and 1 <= min(width, height) / box.width <= 1.5 + 1e-9
    assert box.left >= 0 and box.top >= 0 and box.right <= width + 1e-9 and box.bottom <= height + 1e-9


def test_one_augmentation_changes_no_draw_of_another():
    plain = plan(500, 400, AugmentationConfig(), 4, 0, 20)
    turned = plan(500, 400, AugmentationConfig(random_rotate=RandomRotate(True)), 4, 0, 20)
    assert [(c.box, c.hflip) for c in plain] == [(c.box, c.hflip) for c in turned]


def test_switches_are_honoured():
    off = AugmentationConfig(random_flip=RandomFlip(enable=False), with_random_crop=False)
    assert centre_crop(60, 40) == Crop(Box(10, 0, 50, 40))
    assert plan(60, 40, off, 0, 5) == plan(60, 40, None, 0, 5) == [centre_crop(60, 40)]


@pytest.mark.parametrize("angle", [0, 90, 180, 270, 30])
@pytest.mark.parametrize("hflip, vflip", [(False, False), (True, False), (False, True)])
def test_the_matrix_keeps_the_middle_and_turns_counter_clockwise(angle, hflip, vflip):
    matrix = Crop(Box(10, 20, 74, 84), hflip, vflip, angle).matrix()
    np.testing.assert_allclose(matrix @ [0.5, 0.5, 1], [42, 52, 1])
    assert abs(np.linalg.det(matrix)) == pytest.approx(64 * 64)
    if angle == 90 and not hflip and not vflip:
        assert (matrix @ [0, 0, 1]).tolist() == [74, 20, 1]  # the source's top right is seen at the top left
