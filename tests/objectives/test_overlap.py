"""What the losses are told of two views, from the views that the data room makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from radioplat.data.batch import View
from radioplat.data.images.decode import Decoded
from radioplat.data.views.render import ViewSpec, view_matrix
from radioplat.data.views.view_plan import Equivariance, Recipe
from radioplat.losses.base.grid import on_common_grid
from radioplat.objectives.overlap import overlap_of
from radioplat.spec.schema.dataset import AugmentationConfig

CROPS = np.array([[[600, 0, 100], [0, 400, 50], [0, 0, 1]], [[-90, 0, 95], [0, 80, 7], [0, 0, 1.0]]])


def view(size: int, windows: list[tuple[float, float]] | None = None, valid: np.ndarray | None = None) -> View:
    """Of two images, the second mirrored; ``windows`` cover half of each crop and begin there."""
    inner = None
    if windows:
        inner = np.tile(np.diag([0.5, 0.5, 1.0]), (2, 1, 1))
        inner[:, :2, 2] = windows
    homography = view_matrix(CROPS, size, inner).astype(np.float32)
    return View(np.full((2, 3, size, size), 9, np.uint8), homography, valid)


def test_one_crop_at_two_sizes_is_one_view():
    assert overlap_of(view(224), view(432)) is None
    same = view(64)
    assert overlap_of(same, same) is None
    whole = view(64, valid=np.ones((2, 64, 64), bool))
    assert overlap_of(whole, view(32)) is None


def test_masks_alone():
    valid = np.ones((2, 32, 32), bool)
    valid[1, :16] = False
    found = overlap_of(view(64), view(32, valid=valid))
    assert found.warp is None and found.student is None and found.teacher.equal(torch.tensor(valid))
    found = overlap_of(view(32, valid=valid), view(64))
    assert found.teacher is None and found.student.equal(torch.tensor(valid))


def test_windows_of_one_crop():
    """Whatever the crop and whether it is mirrored: the windows' places in it are all that counts."""
    found = overlap_of(view(64, [(0.25, 0.0), (0.0, 0.5)]), view(96, [(0.0, 0.125), (0.5, 0.5)]))
    expected = np.tile(np.eye(3), (2, 1, 1))
    expected[:, :2, 2] = [(0.5, -0.25), (-1.0, 0.0)]
    np.testing.assert_allclose(found.warp, expected, atol=1e-4)
    student, teacher = torch.rand(2, 4, 4, 3), torch.rand(2, 4, 4, 3)
    _, b, seen = on_common_grid(student, teacher, found)
    torch.testing.assert_close(b[0, 1:, :2], teacher[0, :3, 2:], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(seen.sum((1, 2)), torch.tensor([6.0, 0.0]), rtol=0, atol=1e-2)


def test_what_a_mask_hides_is_never_shown():
    valid = np.ones((2, 8, 8), bool)
    valid[0, 2:4, 5] = False
    given = view(8, valid=valid)
    black = given.shown
    assert (black.transpose(0, 2, 3, 1)[~valid] == 0).all() and (black.transpose(0, 2, 3, 1)[valid] == 9).all()
    given.pixels[:] = np.where(valid[:, None], given.pixels, 200)
    assert (given.shown == black).all() and view(8).shown is not None


def smooth_image(side: int) -> Decoded:
    """Slow waves: what a patch of it looks like on average depends little on where exactly it lies."""
    y, x = np.mgrid[:side, :side] / side
    waves = [np.sin(7 * x + 3 * y), np.cos(5 * x - 6 * y), np.sin(4 * x * y + 2)]
    return Decoded((127 + 120 * np.stack(waves, -1)).astype(np.uint8), side, side)


@pytest.mark.parametrize(
    ("equivariance", "patches", "most"),
    [(Equivariance.shift, (8, 8), 1.5), (Equivariance.shift, (8, 16), 2.5), (Equivariance.full, (8, 8), 14.0)],
)
def test_what_both_models_see_of_a_moved_image_agrees(equivariance, patches, most):
    """Models that say a patch's mean colour: where both look they agree, and without the warp they do not."""
    views = [ViewSpec(name, 64, patch) for name, patch in zip(("student", "teacher"), patches, strict=True)]
    positions, side = np.arange(16), np.full(16, 160)
    plan = Recipe(views, AugmentationConfig(), 3, equivariance).plan(0, side, side, positions)
    for i in range(16):
        plan.fill(i, smooth_image(160))
    made = plan.views()
    overlap = overlap_of(made["student"], made["teacher"])
    maps = [
        F.avg_pool2d(torch.from_numpy(made[view.name].pixels).float(), patch).permute(0, 2, 3, 1)
        for view, patch in zip(views, patches, strict=True)
    ]
    a, b, seen = on_common_grid(*maps, overlap)
    off = (a - b).abs().amax(-1)
    assert off[seen > 0.99].mean() < most / 2 and off[seen > 0.99].quantile(0.99) < 2 * most
    assert 0.3 < (seen > 0).float().mean() < 1
    unaware, theirs, _ = on_common_grid(*maps)
    assert (unaware - theirs).abs().mean() > 3 * off[seen > 0.99].mean()
