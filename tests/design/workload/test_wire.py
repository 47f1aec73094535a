"""Bytes of an image: uint8 pixels there, and bf16 vectors and positions back."""

from __future__ import annotations

import pytest

from radioplat.design.models import design_models
from radioplat.design.workload.wire import feature_bytes, pixel_bytes
from radioplat.spec.loading.load import load_spec

STUDENT = {"type": "radio_vit_tiny_patch16", "kwargs": {"embed_dim": 32, "depth": 1, "num_heads": 2}}


def sent(mode: str, *overrides: str) -> tuple[float, float]:
    teacher = {"name": "t", "mode": mode, "loss_type": "MSE", "model": {"backbone": {"type": "test_vit"}}}
    tree = {
        "model": {"backbone": STUDENT},
        "dataset": {"img_size": 64, "batch_size": 4},
        "distill": {"teacher": [teacher]},
    }
    models = design_models(load_spec(tree, list(overrides)), "distill")
    (found,) = models.teachers
    return pixel_bytes(found), feature_bytes(found, models.infos["t"], models.grids["t"])


def test_only_what_the_losses_need_is_sent_on_their_grid():
    """test_vit has 64 channels, and patches of 16; the student's patches of 16 make 4 x 4 positions."""
    assert sent("spatial") == (3 * 64**2, 4 * 4 * 64 * 2)
    assert sent("summary") == (3 * 64**2, 64 * 2)
    assert sent("combo", "distill.teacher[0].summary_loss_type=cosine") == (3 * 64**2, (4 * 4 + 1) * 64 * 2)
    assert sent("spatial", "distill.teacher[0].input_size=128") == (3 * 128**2, 4 * 4 * 64 * 2)  # of the coarser map


def test_sizes_are_averaged_and_mosaics_divided():
    pixels, _ = sent("spatial", "dataset.augmentation.multi_scales=[{64: 0.5}, {128: 0.5}]")
    assert pixels == pytest.approx(3 * (64**2 + 128**2) / 2)
    pixels, features = sent("spatial", "distill.teacher[0].mosaic=2", "distill.teacher[0].input_size=128")
    assert (pixels, features) == (3 * 64**2, 8 * 8 * 64 * 2 / 4)
