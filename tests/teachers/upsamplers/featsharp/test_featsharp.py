"""The upsampler around a backbone known by hand: 8 x 8 means of the colours, which tiling leaves as they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radioplat.teachers.upsamplers.featsharp.featsharp import FeatSharp, FeatSharpConfig, cut, stitch


def encode(images: torch.Tensor) -> torch.Tensor:
    """``[B, 3, H, W]`` to ``[B, H / 8, W / 8, 3]``."""
    return F.avg_pool2d(images, 8).permute(0, 2, 3, 1)


def upsampler(factor: int = 2, **changes) -> FeatSharp:
    torch.manual_seed(0)
    return FeatSharp(FeatSharpConfig(3, factor, (3, 4), width=16, heads=2, **changes))


def images(factor: int = 2) -> torch.Tensor:
    return torch.rand(2, 3, factor * 24, factor * 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("factor", [2, 4])
def test_tiles_come_back_in_their_places(factor):
    fine = images(factor)
    tiles = cut(fine, factor)
    assert len(tiles) == factor**2 and tiles[0].shape == (2, 3, 24, 32)
    assert torch.equal(stitch(tiles), fine)
    seen = stitch([encode(tile).permute(0, 3, 1, 2) for tile in tiles])
    torch.testing.assert_close(seen, F.avg_pool2d(fine, 8))


@pytest.mark.parametrize("factor", [2, 4])
def test_untrained_it_is_the_mean_of_the_guided_map_and_the_tiles(factor):
    model, fine = upsampler(factor), images(factor)
    with torch.no_grad():
        out = model(fine, encode)
        coarse = F.avg_pool2d(fine, 8 * factor)
        expected = (model.guided(coarse, fine).permute(0, 2, 3, 1) + encode(fine)) / 2
    assert out.shape == (2, 3 * factor, 4 * factor, 3)
    torch.testing.assert_close(out, expected)
    with torch.no_grad():
        given = model(fine, encode, coarse=coarse.permute(0, 2, 3, 1))
    torch.testing.assert_close(given, out)


def test_the_whole_share_of_the_tiles_is_the_finer_map_itself():
    model, fine = upsampler(), images()
    model.fit(encode(fine))
    with torch.no_grad():
        model.refinement.share.fill_(1)
        torch.testing.assert_close(model(fine, encode), encode(fine), rtol=1e-4, atol=1e-5)


def test_fit_makes_the_mean_variance_one_and_forward_undoes_it():
    model, fine = upsampler(), 5 * images() - 2
    model.fit(encode(fine))
    normalised = model.normalise(encode(fine))
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    assert float(normalised.var((0, 2, 3), correction=0).mean()) == pytest.approx(1, abs=1e-4)
    with torch.no_grad():
        raw = model(fine, encode)
    flat = torch.full_like(fine, 0.5)
    with torch.no_grad():
        torch.testing.assert_close(model(flat, encode), torch.full_like(raw, 0.5), rtol=1e-4, atol=1e-4)


def test_a_position_pattern_is_taken_away_and_the_features_mean_is_not():
    model, fine = upsampler(), images()
    pattern = torch.randn(3, 3, 4)
    with torch.no_grad():
        model.pattern.copy_(pattern + 7)
        biased = encode(F.avg_pool2d(fine, 2)) + (pattern - pattern.mean((1, 2), keepdim=True)).permute(1, 2, 0)
        torch.testing.assert_close(
            model.clean(biased).permute(0, 2, 3, 1), encode(F.avg_pool2d(fine, 2)), rtol=1e-4, atol=1e-5
        )
        assert model.clean(torch.zeros(1, 6, 8, 3)).shape == (1, 3, 6, 8)
    assert upsampler(debias=False).pattern is None


def test_gradients_reach_all_of_the_upsampler_and_nothing_of_the_backbone():
    model, backbone = upsampler(), torch.nn.Conv2d(3, 3, 8, stride=8)
    torch.nn.init.normal_(model.refinement.outward.weight)

    @torch.no_grad()
    def frozen(x: torch.Tensor) -> torch.Tensor:
        return backbone(x).permute(0, 2, 3, 1)

    model(images(), frozen).square().mean().backward()
    assert all(p.grad is None for p in backbone.parameters())
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert not without and all(torch.isfinite(p.grad).all() for p in model.parameters())
