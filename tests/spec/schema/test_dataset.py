"""Which augmentations make the views of an image differ."""

from __future__ import annotations

import dataclasses

import pytest

from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.dataset import AugmentationConfig

STILL = ("random_crop.enable=false", "random_flip.enable=false")
# What makes each field random, where all else is still.
RANDOM = {
    "random_flip": ("random_flip.enable=true",),
    "random_crop": ("random_crop.enable=true",),
    "random_rotate": ("random_rotate.enable=true",),
    "random_color": ("random_color.enable=true",),
    "random_erase": ("random_erase.enable=true",),
    "random_aug": ("random_aug.enable=true",),
    "with_scale_random_crop": ("with_scale_random_crop.enable=true",),
    "with_random_blur": ("with_random_blur=true",),
}
# Sizes differ by micro-batch, not by image; with_random_crop alone switches nothing on.
NOT_RANDOM = {"with_random_crop", "multi_scales", "views_per_image", "mean", "std"}


def augmentation(*overrides: str) -> AugmentationConfig:
    return load_spec(None, [f"dataset.augmentation.{line}" for line in (*STILL, *overrides)]).dataset.augmentation


def test_every_field_is_random_or_named_here():
    fields = {field.name for field in dataclasses.fields(AugmentationConfig)}
    assert fields == RANDOM.keys() | NOT_RANDOM, "does a new field make two views of an image differ?"
    assert not augmentation().is_random and AugmentationConfig().is_random


@pytest.mark.parametrize("field", RANDOM)
def test_a_random_field_is_seen(field):
    assert augmentation(*RANDOM[field]).is_random


def test_a_flip_that_never_happens_is_not_random():
    assert not augmentation("random_flip.enable=true", "random_flip.hflip_probability=0").is_random
