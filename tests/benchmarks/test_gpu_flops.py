"""Operations that ``benchmarks.gpu`` counts, against closed forms for a ViT."""

from __future__ import annotations

import pytest

from benchmarks.gpu.flops import described, forward_flop, mfu, taught_flop
from benchmarks.gpu.loop import HIDDEN
from benchmarks.gpu.setting import MODELS, Model


def closed_form(width: int, depth: int, positions: int, prefix: int, patch: int) -> tuple[int, int]:
    """Operations of a ViT's blocks and of its patch embedding, forward, of one image; MLPs are four times as wide."""
    tokens = positions + prefix
    projections = 2 * tokens * (4 * width**2 + 2 * 4 * width**2)  # q, k, v, output; two layers of the MLP
    attention = 2 * 2 * tokens**2 * width  # scores, and their product with the values
    return depth * (projections + attention), 2 * positions * 3 * patch**2 * width


VITS = {
    "tiny": (192, 2, 16, 1, 16),
    "vit_small": (384, 12, 256, 1, 16),
    "vit_large": (1024, 24, 256, 1, 16),
    "clip_h": (1280, 32, 256, 1, 14),
}


@pytest.mark.parametrize("name", VITS)
def test_a_forward_has_the_operations_of_the_closed_form(name):
    blocks, embedding = closed_form(*VITS[name])
    assert forward_flop(MODELS[name]) == blocks + embedding


@pytest.mark.parametrize("name", ["tiny", "vit_small"])
def test_a_backward_has_twice_those_of_the_forward_but_for_the_gradient_of_the_images(name):
    blocks, embedding = closed_form(*VITS[name])
    assert taught_flop(MODELS[name], []) == 3 * blocks + 2 * embedding


def test_heads_are_counted_once_for_the_summary_and_once_for_each_position():
    width, _, positions, *_ = VITS["tiny"]
    alone, widths = taught_flop(MODELS["tiny"], []), [128, 320]
    heads = sum(3 * 2 * (1 + positions) * (width * HIDDEN + HIDDEN * out) for out in widths)
    assert taught_flop(MODELS["tiny"], widths) == alone + heads


def test_a_model_is_described_by_its_width_and_its_grid():
    model = described(Model("any", "vit_tiny_patch16_224", 64, {"depth": 1, "img_size": 64}))
    assert (model.width, model.grid) == (192, 4)


def test_mfu_is_the_share_of_the_peak_of_all_gpus():
    assert mfu(gflop=500.0, images_per_s=1000.0, peak=1e15, gpus=1) == pytest.approx(0.5)
    assert mfu(gflop=500.0, images_per_s=1000.0, peak=1e15, gpus=2) == pytest.approx(0.25)
    assert mfu(gflop=500.0, images_per_s=1000.0, peak=None, gpus=1) is None
