from __future__ import annotations

import pytest
import skimage.data
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.evaluation.metrics.resolution_agreement import Agreement, AgreementMeter, flagged
from radioplat.models.backbones.radio_vit import RadioViT

seeds = st.integers(0, 2**31 - 1)


def photographs(size):
    """Real crops, fp32 ``[N, 3, size, size]`` in [0, 1]."""
    pictures = [skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea(), skimage.data.rocket()]
    crops = [torch.from_numpy(p[y : y + 256, x : x + 256].copy()) for p in pictures for y in (0, 40) for x in (0, 150)]
    pixels = torch.stack(crops).permute(0, 3, 1, 2).float() / 255
    return F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True, align_corners=False)


def patch_means(size, patch=16):
    """A stand-in that cannot switch: mean colours of patches, raised to polynomial features."""
    mean = F.avg_pool2d(photographs(size), patch).permute(0, 2, 3, 1)
    return torch.cat([mean, mean.square(), mean.prod(-1, keepdim=True)], dim=-1)


def measure(maps, center=None):
    base = next(iter(maps.values()))
    meter = AgreementMeter(list(maps), base.flatten(0, -2).mean(0) if center is None else center)
    for start in range(0, len(base), 5):
        meter.update({size: value[start : start + 5] for size, value in maps.items()})
    return {(p.low, p.high): p for p in meter.result()}


def test_features_of_the_image_alone_agree_and_are_not_flagged():
    found = measure({size: patch_means(size) for size in (64, 128, 256)})
    assert set(found) == {(64, 128), (64, 256), (128, 256)}
    for pair in found.values():
        assert pair.agreement > 0.95 and pair.shift < 0.1 and not pair.flag, pair


def test_a_switch_of_the_mean_is_found_where_it_happens():
    maps = {size: patch_means(size) for size in (64, 128, 256)}
    maps[256] = maps[256] + 3 * torch.tensor([1.0, -1, 1, -1, 1, -1, 1])
    found = measure(maps)
    assert not found[64, 128].flag
    assert "moves by" in found[128, 256].flag and "agreement" in found[128, 256].flag
    # Only neighbours are flagged: the pair across says nothing that its parts do not.
    assert not found[64, 256].flag and found[64, 256].shift > 1


def test_a_rotated_space_is_found_though_no_mean_moves():
    maps = {size: patch_means(size) - patch_means(64).flatten(0, -2).mean(0) for size in (64, 128, 256)}
    maps[256] = -maps[256]
    found = measure(maps, torch.zeros(7))
    assert found[128, 256].agreement < -0.9 and found[128, 256].shift < 0.5 and found[128, 256].flag


@settings(max_examples=20, deadline=None)
@given(seeds, st.floats(0.1, 10))
def test_shift_is_the_distance_of_the_means_over_the_spread(seed, distance):
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(50, 2, 2, 6, generator=generator)
    low = low - low.mean((0, 1, 2))
    spread = float(low.square().sum(-1).mean().sqrt())
    step = F.normalize(torch.randn(6, generator=generator), dim=0) * distance * spread
    pair = measure({32: low, 64: low + step}, torch.randn(6, generator=generator))[32, 64]
    assert pair.shift == pytest.approx(distance, rel=1e-4)


def test_unrelated_images_have_nothing_in_common():
    maps = {64: patch_means(64), 128: patch_means(128).roll(4, 0)}
    assert measure(maps)[64, 128].agreement < 0.3


def pair(low, high, agreement, shift=0.0):
    return Agreement(low, high, agreement, 1.0, shift)


def test_a_drop_stands_out_of_the_other_neighbours():
    found = flagged([pair(1, 2, 0.9), pair(2, 3, 0.7), pair(3, 4, 0.92), pair(1, 4, 0.55)])
    assert [bool(p.flag) for p in found] == [False, True, False, False]
    assert not any(p.flag for p in flagged([pair(1, 2, 0.7), pair(2, 3, 0.75)]))
    assert flagged([pair(1, 2, 0.45)])[0].flag


def test_a_vit_that_reads_its_size_from_the_input_takes_all_sizes():
    torch.manual_seed(0)
    vit = RadioViT(patch_size=16, num_class_tokens=1, cpe_max_size=96, embed_dim=48, depth=2, num_heads=3).eval()
    with torch.no_grad():
        maps = {size: vit(photographs(size), frozenset({"summary", "spatial"})).spatial for size in (48, 96, 192)}
    found = measure(maps)
    assert all(-1 <= p.agreement <= 1 and p.shift >= 0 for p in found.values())
    assert found[48, 96].agreement > measure({48: maps[48], 96: maps[96].roll(4, 0)})[48, 96].agreement
