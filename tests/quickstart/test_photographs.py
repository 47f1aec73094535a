import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from timm.models.vision_transformer import VisionTransformer

from radioplat.quickstart.photographs import (
    GAP,
    PHOTOGRAPHS,
    SHAPES,
    SHORT_SIDES,
    Photograph,
    crops,
    misfits,
    random_box,
)
from radioplat.quickstart.weights import teacher_weights


@given(st.integers(150, 1500), st.integers(150, 1500), st.sampled_from("xy"), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_training_and_held_out_crops_share_no_pixel(width, height, split, seed):
    image = Image.new("L", (width, height))
    train, held_out = Photograph("any", (), "", split).parts(image)
    start, end = (2, 0) if split == "x" else (3, 1)
    assert held_out[end] - train[start] >= GAP - 1
    rng = np.random.default_rng(seed)
    for part in (train, held_out):
        left, top, right, bottom = random_box(part, SHORT_SIDES, SHAPES, rng)
        assert part[0] <= left < right <= part[2]
        assert part[1] <= top < bottom <= part[3]


@pytest.mark.parametrize("photograph", PHOTOGRAPHS, ids=lambda photograph: photograph.name)
def test_crops_pass_the_filter_and_misfits_do_not(photograph):
    def passes(image):
        return min(image.size) >= 64 and max(image.size) / min(image.size) <= 3

    for held_out in (False, True):
        assert all(passes(image) for image in crops(photograph, held_out, 6, 0))
    assert not any(passes(image) for image in misfits(photograph, 4, 0))


def test_the_same_arguments_give_the_same_crops():
    first, again, other = ([np.asarray(image) for image in crops(PHOTOGRAPHS[4], False, 3, seed)] for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_probe_fails_an_untrained_network_and_not_a_teacher(tmp_path):
    """Which photograph a held-out crop came from: the gap that a student can close only by learning."""
    bank, bank_label = _pictures(held_out=False, count=10)
    query, query_label = _pictures(held_out=True, count=3)
    file = teacher_weights("tf_efficientnet_lite0", tmp_path)
    teacher = timm.create_model("tf_efficientnet_lite0", checkpoint_path=str(file)).eval()
    teacher.reset_classifier(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        untrained = VisionTransformer(img_size=96, embed_dim=96, depth=4, num_heads=3, num_classes=0).eval()
    accuracy = [_nearest(net, bank, bank_label, query, query_label) for net in (untrained, teacher)]
    assert accuracy[0] < 0.4
    assert accuracy[1] > 0.6


def _pictures(held_out: bool, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    pictures = [
        (np.array(ImageOps.fit(image, (96, 96))), label)
        for label, photograph in enumerate(PHOTOGRAPHS)
        for image in crops(photograph, held_out, count, 0)
    ]
    pixels = torch.from_numpy(np.stack([pixels for pixels, _ in pictures])).permute(0, 3, 1, 2)
    return pixels / 127.5 - 1, torch.tensor([label for _, label in pictures])


@torch.inference_mode()
def _nearest(net, bank, bank_label, query, query_label) -> float:
    bank, query = (torch.nn.functional.normalize(net(x), dim=1) for x in (bank, query))
    return (bank_label[(query @ bank.T).argmax(1)] == query_label).float().mean().item()
