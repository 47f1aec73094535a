from __future__ import annotations

import numpy as np
import pytest
import skimage.data
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.transform import ProjectiveTransform
from skimage.transform import warp as skimage_warp

from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.correspondence import CorrespondenceMeter, apply, draw_homography, warp
from radioplat.spec.schema.evaluate import CorrespondenceConfig

CONFIG = CorrespondenceConfig(enable=True)
SIZE = 128


def photographs():
    """Real crops, uint8 ``[N, 3, 128, 128]``."""
    pictures = [skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea(), skimage.data.rocket()]
    crops = [torch.from_numpy(p[40:296, 60:316].copy()) for p in pictures]
    pixels = torch.stack(crops).permute(0, 3, 1, 2).float()
    return F.interpolate(pixels, SIZE, mode="bilinear", antialias=True).round().to(torch.uint8)


def described(images, side=9, stride=8):
    """Patches around each cell's centre: features that find a place again by its looks."""
    pixels = images.float() - 110  # not the mean: a warped copy has black corners
    patches = F.unfold(F.avg_pool2d(pixels, 3, 1, 1), side, padding=side // 2 - stride // 2 + 1, stride=stride)
    cells = SIZE // stride
    count = int(patches.shape[-1] ** 0.5)
    return patches.transpose(1, 2).reshape(len(images), count, count, -1)[:, :cells, :cells]


def measured(first, second, matrices, thresholds=(0.05, 0.1, 0.2)):
    meter = CorrespondenceMeter(list(thresholds))
    meter.update(first, second, matrices)
    return meter.result()


@pytest.mark.parametrize("seed", range(4))
def test_a_warp_is_the_one_that_scikit_image_makes(seed):
    images, side = photographs()[:1], SIZE
    matrix = draw_homography(CONFIG, seed, 0)
    pixel = np.diag([side, side, 1]) @ matrix @ np.diag([1 / side, 1 / side, 1])
    # scikit-image counts from the centres of pixels.
    centre = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
    inverse = ProjectiveTransform(np.linalg.inv(centre @ pixel @ np.linalg.inv(centre)))
    expected = skimage_warp(images[0].permute(1, 2, 0).numpy(), inverse, order=1, preserve_range=True)
    ours = warp(images, [matrix])[0].permute(1, 2, 0).double().numpy()
    inner = skimage_warp(np.ones((side, side)), inverse, order=0) > 0
    difference = np.abs(ours - expected)[inner]
    assert np.median(difference) < 0.6 and np.quantile(difference, 0.98) < 1.5
    assert 0.5 < inner.mean() <= 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(0, 1000))
def test_homographies_stay_within_what_was_asked(seed, ordinal):
    matrix = draw_homography(CONFIG, seed, ordinal)
    assert np.array_equal(matrix, draw_homography(CONFIG, seed, ordinal))
    middle = apply(matrix, torch.tensor([[0.5, 0.5]], dtype=torch.float64))[0]
    assert (middle - 0.5).abs().max() <= CONFIG.max_shift + 1e-9
    step = 1e-5
    moved = apply(matrix, torch.tensor([[0.5 + step, 0.5], [0.5, 0.5 + step]], dtype=torch.float64)) - middle
    # A shift and a tilt together change the scale in the middle a little.
    zooms, margin = moved.norm(dim=1) / step, 1 + 2 * CONFIG.max_shift * CONFIG.max_tilt + 0.01
    assert (zooms < CONFIG.max_zoom * margin).all() and (zooms > 1 / CONFIG.max_zoom / margin).all()


def test_nothing_asked_is_the_identity():
    still = CorrespondenceConfig(max_rotation=0, max_zoom=1, max_shift=0, max_tilt=0)
    assert np.allclose(draw_homography(still, 5, 6), np.eye(3))
    assert torch.equal(warp(photographs(), [np.eye(3)] * 4), photographs())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_features_that_name_their_place_reach_the_ceiling(rows, columns, seed):
    """The second map says where each of its cells comes from, so that the nearest cell answers."""
    matrix = draw_homography(CONFIG, seed, 0)
    y, x = (torch.arange(n, dtype=torch.float64).add(0.5) / n for n in (rows, columns))
    own = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], dim=-1)
    # On the unit sphere, by stereographic projection: the nearest point has the highest cosine.
    truth = apply(matrix, own)
    result = measured(sphere(truth)[None], sphere(own)[None], [matrix], (0.05, 0.1, 0.2, 1.0))
    assert result.count == int(((truth >= 0) & (truth < 1)).all(-1).sum())
    assert result.pck[1.0] == result.ceiling[1.0] == 1.0
    for threshold in (0.1, 0.2):
        assert result.pck[threshold] >= result.ceiling[threshold] - 0.05


def sphere(points):
    points = points * 0.05  # so small that the projection keeps distances' order
    square = points.square().sum(-1, keepdim=True)
    return torch.cat([2 * points, 1 - square], -1) / (1 + square)


def test_a_map_on_itself_is_found_and_a_shift_by_cells_is_seen():
    images = photographs()
    maps = described(images)
    found = measured(maps, maps, [np.eye(3)] * 4)
    assert found.pck[0.05] > 0.99 and found.images == 4 and found.count == 4 * 16 * 16
    # One quarter of the side to the right: in cells, four of sixteen.
    moved = np.array([[1, 0, 0.25], [0, 1, 0], [0, 0, 1]])
    found = measured(maps, described(warp(images, [moved] * 4)), [moved] * 4)
    assert found.count == 4 * 16 * 12 and found.pck[0.1] > 0.8


def test_patches_of_real_photographs_are_found_and_constant_features_are_not():
    images = photographs()
    small = CorrespondenceConfig(max_rotation=5, max_zoom=1.05, max_tilt=0.02)
    matrices = [draw_homography(small, 0, i) for i in range(4)]
    maps, warped = described(images), described(warp(images, matrices))
    found = measured(maps, warped, matrices)
    assert found.pck[0.1] > 0.5 and found.ceiling[0.05] > 0.9
    assert found.pck[0.05] <= found.pck[0.1] <= found.pck[0.2]
    constant = measured(torch.ones_like(maps), torch.ones_like(warped), matrices)
    assert constant.pck[0.1] < 0.1
    # The same features under another image's homography: chance, about pi 0.1^2.
    strangers = measured(maps, warped.roll(1, 0), matrices)
    assert strangers.pck[0.1] < 0.25 < found.pck[0.1]


def test_what_cannot_be_judged_is_told():
    meter = CorrespondenceMeter([0.1])
    with pytest.raises(RadioplatError, match="no held-out image"):
        meter.result()
    with pytest.raises(RadioplatError, match="not finite"):
        meter.update(torch.full((1, 2, 2, 3), float("nan")), torch.ones(1, 2, 2, 3), [np.eye(3)])
