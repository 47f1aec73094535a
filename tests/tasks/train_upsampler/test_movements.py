"""Views and blur: moving pixels and moving features is one thing, and a blur never sharpens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radioplat.tasks.train_upsampler.downsampler import BlurDownsampler
from radioplat.tasks.train_upsampler.movements import draw_views, sample_views


def drawn(count=500, zoom=1.8, shift=0.15):
    return draw_views(count, torch.Generator().manual_seed(0), zoom, shift)


def test_views_keep_to_their_limits():
    theta = drawn()
    zoom, centre = 1 / theta[:, 1, 1], theta[:, :, 2]
    assert 1 <= zoom.min() < 1.05 and 1.7 < zoom.max() <= 1.8
    torch.testing.assert_close(theta[:, 0, 0].abs(), theta[:, 1, 1])
    assert 0.4 < (theta[:, 0, 0] < 0).float().mean() < 0.6
    beyond = (centre.abs() + 1 / zoom[:, None] - 1) / 2  # as a share of the side
    assert 0.1 < beyond.max() <= 0.15 + 1e-6
    assert torch.equal(theta, drawn())


def test_no_zoom_and_no_shift_is_the_image_or_its_mirror():
    image = torch.rand(8, 3, 12, 12)
    theta = drawn(8, 1.0, 0.0)
    mirrored = theta[:, 0, 0] < 0
    expected = torch.where(mirrored[:, None, None, None], image.flip(-1), image)
    assert 0 < mirrored.sum() < 8
    torch.testing.assert_close(sample_views(image, theta), expected, rtol=0, atol=1e-5)


def test_pixels_and_features_move_alike():
    """A smooth image: its cell means, moved, are the cell means of the moved image."""
    y, x = torch.meshgrid(torch.linspace(0, 3, 96), torch.linspace(0, 3, 96), indexing="ij")
    image = torch.stack([torch.sin(x + y), torch.cos(x - 2 * y)])[None].expand(20, 2, 96, 96)
    theta = drawn(20, 1.8, 0.0)
    ours, theirs = sample_views(F.avg_pool2d(image, 4), theta), F.avg_pool2d(sample_views(image, theta), 4)
    assert (ours - theirs)[..., 2:-2, 2:-2].abs().max() < 0.02


@pytest.mark.parametrize("factor", [2, 4])
def test_the_blur_begins_as_the_mean_of_a_cell(factor):
    fine = torch.rand(2, 5, 3 * factor, 4 * factor)
    blur = BlurDownsampler(factor)
    out = blur(fine)
    assert out.shape == (2, 5, 3, 4)
    torch.testing.assert_close(out, F.avg_pool2d(fine, factor), rtol=0, atol=0.05)
    torch.nn.init.normal_(blur.logits)
    torch.testing.assert_close(blur(torch.full_like(fine, 3.0)), torch.full_like(out, 3.0))
    assert blur(fine).max() <= fine.max() and blur(fine).min() >= fine.min()
