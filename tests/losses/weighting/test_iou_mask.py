"""TAO's weights of positions, by hand. The lines of TAO 7.0.1's own code give the same numbers for random tensors."""

from __future__ import annotations

import math

import torch
from torchvision.ops import box_convert

from radioplat.losses.weighting.iou_mask import tao_object_mask

AXES = torch.eye(2)  # features of proposal 0 and 1, and of some positions
POSITIONS = torch.stack([AXES[0], AXES[1], AXES.sum(0), -AXES[0]]).reshape(1, 2, 2, 2)
LOGITS = torch.tensor([[[4.0, -9.0], [1.0, 2.0]]])  # the highest: 4 and 2
BOXES = torch.tensor([[[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]]])


def mask(truth: torch.Tensor, side: int = 8) -> torch.Tensor:
    return tao_object_mask(LOGITS, BOXES, AXES[None], POSITIONS, [truth], (side, side)).flatten()


def test_without_objects_the_logits_alone_weigh():
    """Sums 4, 2, (4 + 2) / sqrt 2 and -4, which becomes 0.01; divided by the largest."""
    sums = torch.tensor([4.0, 2.0, 6 / math.sqrt(2), 0.01])
    torch.testing.assert_close(mask(torch.zeros(0, 4)), sums / sums.max())


def test_the_iou_is_with_the_numbers_of_the_objects_read_as_corners():
    """Proposal 0 is the corner 4 x 4 pixels; the numbers (0, 0, 4, 2) overlap half of it, and proposal 1 nowhere."""
    sums = torch.tensor([2.0, 0.01, 2 / math.sqrt(2), 0.01])
    torch.testing.assert_close(mask(torch.tensor([[0.0, 0.0, 4.0, 2.0]])), sums / 2)


def test_with_relative_objects_all_weights_are_one():
    """As in TAO: an object at the very place of proposal 0, in the form of a target."""
    assert torch.equal(mask(BOXES[0, :1], 640), torch.ones(4))
    corners = box_convert(BOXES[0, :1], "cxcywh", "xyxy") * 640
    assert mask(corners, 640).min() < 0.01  # not if its corners in pixels were given
