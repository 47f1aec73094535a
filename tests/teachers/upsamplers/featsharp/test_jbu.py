"""Joint bilateral upsampling: what is even stays even, and what has an edge keeps it where the image has one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from radioplat.teachers.upsamplers.featsharp.jbu import JointBilateral, JointBilateralStack


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("grid", [(1, 1), (3, 5)])
def test_a_constant_map_stays_constant(factor, grid):
    value = torch.randn(1, 6, 1, 1)
    image = torch.rand(1, 3, 64, 64)
    out = JointBilateralStack(factor)(value.expand(1, 6, *grid), image)
    assert out.shape == (1, 6, factor * grid[0], factor * grid[1])
    torch.testing.assert_close(out, value.expand_as(out), rtol=1e-5, atol=1e-5)


def test_weights_are_positive_sum_to_one_and_stay_in_the_image():
    stage = JointBilateral(8, radius=2)
    weights = stage.weights(torch.rand(1, 3, 5, 6)).view(1, 5, 5, 5, 6)
    torch.testing.assert_close(weights.sum((1, 2)), torch.ones(1, 5, 6))
    assert (weights >= 0).all()
    assert weights[0, :2, :, 0].abs().max() == 0 and weights[0, :, :2, :, 0].abs().max() == 0
    assert weights[0, 2:, 2:, 0, 0].min() > 0


def test_an_edge_of_the_image_is_not_crossed():
    """Closed form: with colours that share nothing, a position is the Gaussian mean of its own side of the edge."""
    stage = JointBilateral(2, radius=2)
    stage.project = nn.Conv2d(3, 2, 1, bias=False)  # red and green as they are
    with torch.no_grad():
        stage.project.weight.copy_(torch.eye(3)[:2].view(2, 3, 1, 1))
        stage.log_precision.fill_(math.log(60))
        stage.log_sigma.fill_(math.log(1.5))
    guide = torch.zeros(1, 3, 8, 8)
    guide[:, 0, :, :4], guide[:, 1, :, 4:] = 1, 1
    coarse = torch.zeros(1, 1, 4, 4)
    coarse[..., :2] = torch.rand(4, 2) + 1
    resized = F.interpolate(coarse, size=(8, 8), mode="bicubic", align_corners=False)[0, 0]
    with torch.no_grad():
        out = stage(coarse, guide)[0, 0]
    for y, x in itertools.product(range(8), repeat=2):
        total = weight = 0.0
        for b, a in itertools.product(range(max(0, y - 2), min(8, y + 3)), range(max(0, x - 2), min(8, x + 3))):
            if (a < 4) == (x < 4):
                k = math.exp(-((b - y) ** 2 + (a - x) ** 2) / (2 * 1.5**2))
                total, weight = total + k * float(resized[b, a]), weight + k
        assert float(out[y, x]) == pytest.approx(total / weight, abs=1e-4)


def test_a_step_is_sharper_than_bicubic():
    stage = JointBilateral(2)
    stage.project = nn.Conv2d(3, 2, 1, bias=False)
    with torch.no_grad():
        stage.project.weight.copy_(torch.eye(3)[:2].view(2, 3, 1, 1))
        stage.log_precision.fill_(math.log(60))
    guide = torch.zeros(1, 3, 16, 16)
    guide[:, 0, :, :8], guide[:, 1, :, 8:] = 1, 1
    coarse = torch.zeros(1, 1, 8, 8)
    coarse[..., :4] = 1
    ideal = guide[:, :1]
    resized = F.interpolate(coarse, size=(16, 16), mode="bicubic", align_corners=False)
    with torch.no_grad():
        off, bicubic = ((x - ideal).abs().mean() for x in (stage(coarse, guide), resized))
    assert off < 0.7 * bicubic


@pytest.mark.parametrize("factor", [0, 1, 3, 6])
def test_factors_that_are_no_doublings(factor):
    with pytest.raises(ValueError, match="power of two"):
        JointBilateralStack(factor)
