"""Means that leave out what does not count, and maps on a common grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from radioplat.losses.base.reduce import masked_mean, to_grid

NAN = float("nan")


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.booleans()), min_size=1, max_size=8))
def test_mean_over_the_living(samples):
    values = torch.tensor([v if alive else NAN for v, alive in samples], requires_grad=True)
    weight = torch.tensor([float(alive) for _, alive in samples])
    found = masked_mean(values, weight)
    found.backward()
    living = [v for v, alive in samples if alive]
    np.testing.assert_allclose(found.item(), np.mean(living) if living else 0, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(values.grad, weight / max(1, len(living)))


def test_maps():
    values = torch.rand(3, 2, 4)
    weight = torch.tensor([1.0, 0.0, 1.0])
    torch.testing.assert_close(masked_mean(values, weight), (values[0].mean() + values[2].mean()) / 2)
    torch.testing.assert_close(
        masked_mean(values, torch.tensor([2.0, 0.0, 1.0])), (2 * values[0].mean() + values[2].mean()) / 3
    )


def test_invalid_positions_change_neither_value_nor_gradient():
    values = torch.rand(3, 2, 2)
    valid = torch.tensor([[[1.0, 1], [1, 1]], [[1, 0], [0, 0]], [[0, 0], [0, 0]]])
    values[valid == 0] = NAN
    values.requires_grad_()
    found = masked_mean(values, torch.ones(3), valid)
    found.backward()
    # The third sample shows nothing at all: it does not thin out the others.
    torch.testing.assert_close(found, (values[0].mean() + values[1, 0, 0]) / 2)
    expected = torch.tensor([[[0.125] * 2] * 2, [[0.5, 0], [0, 0]], [[0.0] * 2] * 2])
    torch.testing.assert_close(values.grad, expected)
    assert masked_mean(values.detach(), torch.zeros(3), valid) == 0


def test_partly_valid_positions_weigh_less():
    values, valid = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[1.0, 0.5]]])
    torch.testing.assert_close(masked_mean(values, torch.ones(1), valid), torch.tensor(2.5 / 1.5))


def test_same_grid_is_the_same_tensor():
    x = torch.rand(1, 3, 4, 5)
    assert to_grid(x, (3, 4)) is x


@pytest.mark.parametrize("factor", [2, 3])
def test_shrinking_averages_blocks(factor):
    x = torch.rand(2, 2 * factor, 3 * factor, 4)
    expected = x.reshape(2, 2, factor, 3, factor, 4).mean((2, 4))
    torch.testing.assert_close(to_grid(x, (2, 3)), expected)


def test_shrinking_keeps_the_mean_at_any_ratio_that_tiles():
    x = torch.rand(1, 12, 8, 3)
    for grid in ((6, 4), (3, 8), (12, 1), (4, 2)):
        torch.testing.assert_close(to_grid(x, grid).mean((1, 2)), x.mean((1, 2)))


@pytest.mark.parametrize("grid", [(6, 7), (6, 2), (2, 9)])
def test_growing_is_bilinear(grid):
    x = torch.rand(2, 3, 4, 5)
    expected = F.interpolate(x.permute(0, 3, 1, 2), size=grid, mode="bilinear", align_corners=False)
    torch.testing.assert_close(to_grid(x, grid), expected.permute(0, 2, 3, 1))


def test_a_ramp_keeps_its_places():
    """Positions correspond by scale: the centre of cell i lies at (i + 1/2) / n of the crop, on either grid."""

    def ramp(n: int) -> torch.Tensor:
        return ((torch.arange(n) + 0.5) / n).view(1, 1, n, 1).expand(1, n, n, 1)

    torch.testing.assert_close(to_grid(ramp(12), (4, 4)), ramp(4))
    torch.testing.assert_close(to_grid(ramp(4), (8, 8))[:, :, 1:-1], ramp(8)[:, :, 1:-1])
