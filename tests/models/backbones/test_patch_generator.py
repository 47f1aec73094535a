"""Patches, cropped position embeddings, and the tokens before them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from radioplat.models.backbones.patch_generator import PatchGenerator


def make(patch=4, width=6, max_size=32, classes=2, registers=3) -> PatchGenerator:
    return PatchGenerator(patch, width, max_size, classes, registers).eval()


def test_patches_are_read_channel_row_column():
    """RADIO's order (c, y, x), which is that of a convolution's weight."""
    generator = make()
    images = torch.rand(2, 3, 8, 12)
    with torch.no_grad():
        generator.pos_embed.zero_()
        tokens = generator(images)[:, generator.num_prefix :]
        kernel = generator.embedder.weight.reshape(6, 3, 4, 4)
        expected = F.conv2d(images, kernel, stride=4).flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens, expected)


def test_prefix_is_class_tokens_then_registers():
    generator = make()
    tokens = generator(torch.rand(2, 3, 8, 8))
    assert tokens.shape == (2, 2 + 3 + 4, 6) and generator.num_prefix == 5
    for image in tokens:
        assert torch.equal(image[:5], generator.cls_token["token"])


def test_evaluation_at_the_tables_own_size_is_the_table():
    generator = make()
    assert torch.equal(generator.positions(2, 8, 8), generator.pos_embed)


@pytest.mark.parametrize(("h", "w"), [(4, 4), (3, 5), (5, 3), (16, 2), (8, 5)])
def test_evaluation_resizes_to_the_longer_side_and_takes_the_top_left(h, w):
    generator = make()
    longest = max(h, w)
    table = generator.pos_embed.reshape(1, 8, 8, 6).permute(0, 3, 1, 2)
    resized = F.interpolate(table, size=(longest, longest), mode="bilinear", align_corners=False)
    expected = resized[0, :, :h, :w].permute(1, 2, 0).reshape(h * w, 6)
    torch.testing.assert_close(generator.positions(1, h, w)[0], expected)


def test_training_crops_follow_the_seed_and_differ_between_images():
    generator = make().train()

    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return generator.positions(3, 5, 4).detach()

    first = draw(1)
    assert first.shape == (3, 20, 6)
    assert torch.equal(first, draw(1)) and not torch.equal(first, draw(2))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])


def test_training_crops_lie_inside_the_table_and_span_what_is_published():
    generator = make().train()
    torch.manual_seed(0)
    grid = generator._random_crops(2000, 2, 2, torch.device("cpu"))
    assert grid.abs().max() <= 1
    # Two samples a side lie at a quarter and three quarters: their distance is half the crop.
    width = grid[:, 0, 1, 0] - grid[:, 0, 0, 0]
    height = grid[:, 1, 0, 1] - grid[:, 0, 0, 1]
    low = math.sqrt(0.1)
    for side in (width, height):
        assert side.min() >= low * math.sqrt(3 / 4) - 1e-6 and side.max() <= 1 + 1e-6
    aspect = width / height
    assert aspect.min() >= 3 / 4 - 1e-5 and aspect.max() <= 4 / 3 + 1e-5
    area = (width * height)[(width < 1) & (height < 1)].sqrt()  # unclipped: the scale itself
    assert area.min() < low + 0.02 and area.max() > 0.85


def test_a_table_that_is_linear_in_its_place_gives_places_of_the_crop():
    """Bilinear sampling of a ramp is exact, so a crop's rows must grow evenly."""
    generator = PatchGenerator(1, 2, 16, 1, 0).train()
    ramp = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"), -1)
    with torch.no_grad():
        generator.pos_embed.copy_(ramp.reshape(1, 256, 2))
    torch.manual_seed(3)
    crop = generator.positions(4, 6, 6).reshape(4, 6, 6, 2)[:, 1:-1, 1:-1]  # the rim may be clamped
    rows, columns = crop[..., 0].diff(dim=1), crop[..., 1].diff(dim=2)
    for step in (rows, columns):
        assert (step.flatten(1).std(1) < 1e-4).all() and (step > 0).all()
