"""Decoders on frozen maps: places, numbers of classes, and fields of the other decoder."""

from __future__ import annotations

import pytest

from radioplat.spec.checks.tasks.evaluate_masks import mask_problems
from radioplat.spec.schema.evaluate import ChangeConfig, DecoderKind, LightDecoderConfig, SegmentationConfig

PLACES = dict(images_dir="i", masks_dir="m", num_classes=3)
PAIRS = dict(before_dir="a", after_dir="b", masks_dir="m")
LIGHT = dict(decoder=DecoderKind.light)


@pytest.mark.parametrize(
    ("config", "wheres"),
    [
        (SegmentationConfig(), []),
        (ChangeConfig(), []),
        (SegmentationConfig(**PLACES), []),
        (ChangeConfig(**PAIRS), []),
        (SegmentationConfig(shards_dir="s", num_classes=3), []),
        (SegmentationConfig(**PLACES, shards_dir="s"), ["images_dir", "masks_dir"]),
        (SegmentationConfig(num_classes=3), ["images_dir", "masks_dir"]),
        (ChangeConfig(**PAIRS | {"after_dir": None}), ["after_dir"]),
        (ChangeConfig(**PAIRS, val_masks_dir="v"), ["val_before_dir", "val_after_dir"]),
        (ChangeConfig(**PAIRS, val_shards_dir="v"), []),
        (ChangeConfig(**PAIRS, val_shards_dir="v", val_masks_dir="v"), ["val_masks_dir"]),
        (SegmentationConfig(**PLACES | {"num_classes": 1}), ["num_classes"]),
        (SegmentationConfig(**PLACES, class_values=[0, 1]), ["class_values"]),
        (SegmentationConfig(**PLACES, class_values=[0, 1, 1]), ["class_values"]),
        (ChangeConfig(**PAIRS, class_values=[0, 255]), ["ignore_index"]),
        (ChangeConfig(**PAIRS, class_values=[0, 255], ignore_index=None), []),
        (SegmentationConfig(**PLACES, weight_decays=[]), ["weight_decays"]),
        (SegmentationConfig(**PLACES, light=LightDecoderConfig(width=64)), ["light.width"]),  # the linear one is taken
        (SegmentationConfig(**PLACES, **LIGHT, max_iter=9), ["max_iter"]),
        (SegmentationConfig(**PLACES, **LIGHT, light=LightDecoderConfig(width=60)), ["light.width"]),
        (SegmentationConfig(**PLACES, **LIGHT), []),
    ],
)
def test_rule(config, wheres):
    assert [problem.where for problem in mask_problems(config, "here")] == [f"here.{where}" for where in wheres]
