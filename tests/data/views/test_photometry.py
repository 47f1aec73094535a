"""Light and colour change alike in all views, and stay keyed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image, ImageFilter

from radioplat.data.views.photometry import GREY, Photometry, colour_filter, plan_photometry
from radioplat.quickstart.photographs import PHOTOGRAPHS
from radioplat.spec.schema.dataset import AugmentationConfig, RandomColor, RandomErase, Switch

SPAN = np.arange(500)
EVERYTHING = AugmentationConfig(
    random_color=RandomColor(True), random_aug=Switch(True), random_erase=RandomErase(True), with_random_blur=True
)


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return np.asarray(PHOTOGRAPHS[4].open()[0].resize((128, 128), Image.Resampling.BILINEAR))


def plan(augmentation, position=SPAN, seed=0) -> list[Photometry]:
    return plan_photometry(augmentation, seed, position)


def test_nothing_is_planned_where_nothing_is_asked():
    assert plan_photometry(None, 0, SPAN) is None and plan(AugmentationConfig()) is None


def test_a_plan_follows_from_its_key(photo):
    first, again, other = plan(EVERYTHING), plan(EVERYTHING, SPAN[7:9]), plan(EVERYTHING, seed=1)
    assert (first[7](photo) == again[0](photo)).all()
    assert np.mean([(a(photo) == b(photo)).all() for a, b in zip(first[:20], other[:20], strict=True)]) < 0.2


def test_everything_keeps_shape_and_type(photo):
    for change in plan(EVERYTHING)[:60]:
        out = change(photo)
        assert out.shape == photo.shape and out.dtype == np.uint8


def test_a_coarse_and_a_fine_view_change_alike(photo):
    augmentation = AugmentationConfig(random_color=RandomColor(True), with_random_blur=True)
    half = np.asarray(Image.fromarray(photo).resize((64, 64), Image.Resampling.BOX))
    for change in plan(augmentation)[:30]:
        a = np.asarray(Image.fromarray(change(photo)).resize((64, 64), Image.Resampling.BOX)).astype(float)
        assert np.abs(a - change(half)).mean() < 4


def test_colours_are_the_identity_at_no_change_and_grey_without_saturation(photo):
    image = Image.fromarray(photo)
    assert np.abs(np.asarray(colour_filter(1, 1, 1, 0)(image)).astype(int) - photo).max() <= 1
    grey = np.asarray(colour_filter(1, 1, 0, 1.0)(image)).astype(int)
    assert np.abs(grey - np.asarray(image.convert("L"))[..., None]).max() <= 2
    bright = np.asarray(colour_filter(1.2, 1, 1, 0)(image))
    assert np.abs(bright - np.clip(photo * 1.2, 0, 255)).max() <= 2
    turned = np.asarray(colour_filter(1, 1, 1, 2 * math.pi)(image)).astype(int)
    assert np.abs(turned - photo).max() <= 1


def test_contrast_turns_about_grey():
    flat = Image.new("RGB", (4, 4), (GREY, GREY, GREY))
    assert np.abs(np.asarray(colour_filter(1, 1.9, 1, 0)(flat)).astype(int) - GREY).max() <= 1


def test_blur_is_pillow_s_and_scales_with_the_view(photo):
    expected = np.asarray(Image.fromarray(photo).filter(ImageFilter.GaussianBlur(0.01 * 128)))
    assert (Photometry(sigma=0.01)(photo) == expected).all()


def test_a_rectangle_is_erased_where_the_share_says(photo):
    out = Photometry(erased=(0.25, 0.5, 0.5, 1.0))(photo)
    assert (out[64:, 32:64] == GREY).all()
    rest = np.ones((128, 128), bool)
    rest[64:, 32:64] = False
    assert (out[rest] == photo[rest]).all()


def test_probabilities():
    plans = plan(AugmentationConfig(random_erase=RandomErase(True, 0.2), with_random_blur=True), np.arange(3000))
    assert np.mean([p.erased is not None for p in plans]) == pytest.approx(0.2, abs=0.03)
    assert np.mean([p.sigma > 0 for p in plans]) == pytest.approx(0.5, abs=0.03)
    areas = [(p.erased[2] - p.erased[0]) * (p.erased[3] - p.erased[1]) for p in plans if p.erased]
    assert 0.01 < min(areas) and max(areas) < 0.34
