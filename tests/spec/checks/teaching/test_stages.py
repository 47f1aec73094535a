"""Every rule of stages, sizes of partitions and mosaics by an example that breaks it, and only it."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec

EXAMPLE = Path(__file__).parents[4] / "specs" / "radio_two_teachers.yaml"
A, B = "c_radio_v3_vit_huge_patch16_reg4_dinov2", "vit_h_14_siglip_clipa_224"
S, T = "distill.stages", "distill.teacher[0]"
THREE = f"{S}=[{{steps: 300, img_size: 256}}, {{steps: 300, img_size: 432, lr: 1e-4}}, {{steps: 10, teachers: [{A}]}}]"
HALVES = f"distill.partitions=[{{share: 0.5, teachers: [{A}], img_size: 448}}, {{share: 0.5, teachers: [{B}]}}]"
TWO = "train.global_batch_size=64"


@pytest.mark.parametrize(
    "overrides",
    [
        [THREE],
        [THREE, "train.max_steps=50"],
        [HALVES, TWO],
        [HALVES, TWO, THREE.replace(f", teachers: [{A}]", "")],
        [HALVES.replace("img_size: 448", "sizes: {224: 0.25, 448: 0.75}"), TWO],
        [HALVES.replace("img_size: 448", "img_size: 448, sizes: []"), TWO],
        [f"{T}.mosaic=2"],
        ["dataset.train_dataset.shift_equivariance=true"],
        ["dataset.train_dataset.full_equivariance=true"],
    ],
)
def test_what_fits(overrides):
    assert check(load_spec(EXAMPLE, overrides)) == []


@pytest.mark.parametrize(
    ("overrides", "where", "words"),
    [
        ([f"{S}=[{{steps: 0}}]"], f"{S}[0].steps", "at least 1"),
        ([f"{S}=[{{steps: 5}}, {{steps: 5, img_size: -16}}]"], f"{S}[1].img_size", "at least 1"),
        ([f"{S}=[{{steps: 5, lr: 0}}]"], f"{S}[0].lr", "above 0"),
        ([f"{S}=[{{steps: 5}}, {{steps: 5, teachers: [clip]}}]"], f"{S}[1].teachers", "'clip'"),
        ([THREE, "train.max_steps=611"], "train.max_steps", "add up to 610 steps, not to 611"),
        ([f"{S}=[{{steps: 5, teachers: [{A}]}}]"], "distill.teacher[1]", "no stage has"),
        (
            [HALVES, TWO, f"{S}=[{{steps: 5, teachers: [{A}]}}, {{steps: 5}}]"],
            f"{S}[0].teachers",
            "micro-batches have no teacher",
        ),
        (
            [f"{S}=[{{steps: 200, teachers: [{A}]}}, {{steps: 5}}]", "distill.target_norm.type=standardize"],
            "distill.target_norm",
            "does not teach there",
        ),
        ([HALVES.replace("448", "0"), TWO], "distill.partitions[0].img_size", "at least 1"),
        (
            [HALVES.replace("448", "448, sizes: [224, 448]"), TWO],
            "distill.partitions[0].sizes",
            "img_size sets the size",
        ),
        (
            [HALVES.replace("img_size: 448", "sizes: {0: 0.5, 448: 0.5}"), TWO],
            "distill.partitions[0].sizes",
            "at least 1",
        ),
        ([HALVES.replace("img_size: 448", "sizes: {448: 0}"), TWO], "distill.partitions[0].sizes", "above 0"),
        (
            [HALVES.replace("}]", ", sizes: [224]}]"), TWO, f"{S}=[{{steps: 5, img_size: 256}}]"],
            f"{S}[0].img_size",
            "every partition sets the size",
        ),
        (
            [
                HALVES.replace("}]", ", img_size: 224}]").replace("img_size: 448", "sizes: [448]"),
                TWO,
                "dataset.augmentation.multi_scales=[224, 256]",
            ],
            "distill.partitions[0].sizes",
            "it replaces the sizes",
        ),
        (
            [HALVES.replace("}]", ", img_size: 224}]"), TWO, f"{S}=[{{steps: 5, img_size: 256}}]"],
            f"{S}[0].img_size",
            "every partition sets the size",
        ),
        (
            ["dataset.augmentation.multi_scales=[224, 256]", f"{S}=[{{steps: 5, img_size: 448}}]"],
            f"{S}[0].img_size",
            "it replaces the sizes",
        ),
        ([f"{T}.mosaic=0"], f"{T}.mosaic", "at least 1"),
        ([f"{T}.mosaic=2", f"{T}.input_size=null"], f"{T}.mosaic", "fixed size"),
        ([f"{T}.mosaic=2", f"{T}.mode=combo"], f"{T}.mosaic", "no summary"),
        (["dataset.val_dataset.full_equivariance=true"], "dataset.val_dataset.full_equivariance", "in training only"),
    ],
)
def test_what_does_not(overrides, where, words, problems_of):
    problems = problems_of(EXAMPLE, overrides)
    assert [p.where for p in problems] == [where] and words in problems[0].message
