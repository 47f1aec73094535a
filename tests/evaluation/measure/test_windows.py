import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.evaluation.measure.windows import Windows


@settings(max_examples=30, deadline=None)
@given(side=st.integers(1, 20), cell=st.sampled_from([1, 2, 5]), positions=st.integers(1, 20), finer=st.integers(1, 2))
def test_maps_that_depend_on_their_own_pixels_alone_are_those_of_the_whole_image(side, cell, positions, finer):
    windows = Windows.covering(side * cell, side, positions)
    assert windows.positions >= max(side, positions) and windows.image_size == windows.positions * cell
    assert (windows.count == 1) == (side >= positions)
    images = torch.rand(2, 3, windows.image_size, windows.image_size, dtype=torch.float64)

    def encode(pixels):
        means = F.avg_pool2d(pixels, cell).repeat_interleave(finer, 2).repeat_interleave(finer, 3)
        return means.permute(0, 2, 3, 1)

    joined = windows.joined(encode(windows.cut(images)))
    torch.testing.assert_close(joined, encode(images))


def test_a_position_counts_less_near_the_border_of_its_window():
    windows = Windows(size=3, side=3, step=1, count=2)  # 4 x 4 positions; weights along a row 1 2 1 and 1 2 1
    maps = torch.tensor([0.0, 1.0, 0.0, 1.0]).reshape(4, 1, 1, 1).expand(4, 3, 3, 1)  # windows to the right are 1
    row = windows.joined(maps)[0, 0, :, 0]
    assert row.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_windows_of_a_size_that_is_no_multiple_of_the_map_lie_within_the_image():
    windows = Windows.covering(100, 3, 14)
    tiles = windows.cut(torch.arange(windows.image_size).expand(1, 3, windows.image_size, -1))
    assert tiles.shape == (windows.count**2, 3, 100, 100)
    left = tiles[: windows.count, 0, 0, 0].numpy()
    assert np.abs(left - 100 / 3 * np.arange(windows.count)).max() <= 0.5 and left[-1] + 100 == windows.image_size
