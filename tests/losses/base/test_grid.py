"""The grid rule against closed forms: identity, shifts, mirrors, zooms; what is hidden changes nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.base.grid import Overlap, on_common_grid, visible_positions
from radioplat.losses.base.reduce import masked_mean, to_grid
from radioplat.losses.terms.feature import balanced

B, D = 2, 3


def map_of(h: int, w: int, seed: int = 0, d: int = D) -> torch.Tensor:
    return torch.randn(B, h, w, d, generator=torch.Generator().manual_seed(seed))


def warp(matrix: list[list[float]]) -> torch.Tensor:
    """The same for every sample: ``[B, 3, 3]``, unit square of the student's view to the teacher's."""
    return torch.tensor(matrix).expand(B, 3, 3).clone()


def shift(x: float, y: float) -> torch.Tensor:
    return warp([[1, 0, x], [0, 1, y], [0, 0, 1.0]])


sides = st.integers(1, 6)


@given(sides, sides, sides, sides, st.booleans())
@settings(max_examples=40, deadline=None)
def test_one_view_without_masks_is_to_grid_to_the_bit(h, w, r, c, masked):
    student, teacher = map_of(h, w), map_of(r, c, 1)
    whole = torch.ones(B, 12, 12, dtype=torch.bool)
    overlap = Overlap(None, whole, whole) if masked else None
    a, b, seen = on_common_grid(student, teacher, overlap)
    grid = min(h, r), min(w, c)
    assert torch.equal(a, to_grid(student, grid)) and torch.equal(b, to_grid(teacher, grid))
    assert torch.equal(seen, torch.ones(B, *grid)) if masked else seen is None


@given(sides, sides, st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_warp_that_moves_nothing_averages_whole_cells(h, w, down, across):
    """The path of a warp meets the one without where grids divide each other, whichever is the finer."""
    coarse, fine = map_of(h, w), map_of(h * down, w * across, 1)
    for student, teacher in ((coarse, fine), (fine, coarse)):
        a, b, seen = on_common_grid(student, teacher, Overlap(shift(0, 0)))
        plain = on_common_grid(student, teacher)
        torch.testing.assert_close(a, plain[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b, plain[1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen, torch.ones(B, h, w))


@given(st.integers(2, 7), st.integers(-6, 6), st.integers(-6, 6))
@settings(max_examples=60, deadline=None)
def test_a_shift_of_whole_positions_compares_the_common_ones(n, dx, dy):
    """The teacher's view lies dx, dy positions further left and up: student (i, j) is its (i + dy, j + dx)."""
    student, teacher = map_of(n, n), map_of(n, n, 1)
    a, b, seen = on_common_grid(student, teacher, Overlap(shift(dx / n, dy / n)))
    for i in range(n):
        for j in range(n):
            common = 0 <= i + dy < n and 0 <= j + dx < n
            torch.testing.assert_close(seen[:, i, j], torch.full((B,), float(common)), rtol=0, atol=1e-4)
            if common:
                torch.testing.assert_close(a[:, i, j], student[:, i, j])
                torch.testing.assert_close(b[:, i, j], teacher[:, i + dy, j + dx], rtol=1e-4, atol=1e-4)
            else:
                assert not a[:, i, j].any() and not b[:, i, j].any()


def test_a_mirror():
    student, teacher = map_of(4, 4), map_of(4, 4, 1)
    a, b, seen = on_common_grid(student, teacher, Overlap(warp([[-1, 0, 1], [0, 1, 0], [0, 0, 1.0]])))
    torch.testing.assert_close(b, teacher.flip(2), rtol=1e-4, atol=1e-5)
    assert torch.equal(a, student) and torch.equal(seen, torch.ones(B, 4, 4))


def test_a_teacher_that_sees_the_left_upper_quarter_twice_as_large():
    student, teacher = map_of(4, 4), map_of(4, 4, 1)
    a, b, seen = on_common_grid(student, teacher, Overlap(warp([[2, 0, 0], [0, 2, 0], [0, 0, 1.0]])))
    expected = torch.zeros(B, 4, 4)
    expected[:, :2, :2] = 1
    assert torch.equal(seen, expected)
    torch.testing.assert_close(b[:, :2, :2], to_grid(teacher, (2, 2)))  # bilinear in the middle of four
    assert torch.equal(a[:, :2, :2], student[:, :2, :2]) and not a[:, 2:].any() and not b[:, :, 2:].any()


def test_the_finer_map_is_sampled_whoever_has_it():
    """A student twice as fine, one of the teacher's positions to the right: its gradient is that of an average."""
    student, teacher = map_of(8, 8).requires_grad_(), map_of(4, 4, 1)
    a, b, seen = on_common_grid(student, teacher, Overlap(shift(0.25, 0)))
    torch.testing.assert_close(seen[0], torch.tensor([0.0, 1, 1, 1]).expand(4, 4), rtol=0, atol=1e-4)
    torch.testing.assert_close(a[:, :, 1:], to_grid(student, (4, 4))[:, :, :-1], rtol=1e-4, atol=1e-4)
    assert torch.equal(b[:, :, 1:], teacher[:, :, 1:])
    a.sum().backward()
    expected = torch.full_like(student, 0.25)
    expected[:, :, 6:] = 0  # the teacher does not look there
    torch.testing.assert_close(student.grad, expected, rtol=1e-4, atol=1e-4)


def test_a_perspective_against_its_own_formula():
    """A map that holds its own coordinates, sampled by a homography, holds what the homography says."""
    matrix = torch.tensor([[0.8, 0.1, 0.05], [-0.05, 0.7, 0.1], [0.1, -0.05, 1.0]])
    centres = (torch.arange(16) + 0.5) / 16
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    teacher = torch.stack([x, y], -1).expand(B, 16, 16, 2)
    coarse = (torch.arange(5) + 0.5) / 5
    v, u = torch.meshgrid(coarse, coarse, indexing="ij")
    points = torch.stack([u, v, torch.ones_like(u)], -1) @ matrix.T
    _, b, seen = on_common_grid(map_of(5, 5, d=2), teacher, Overlap(matrix.expand(B, 3, 3)))
    assert torch.equal(seen, torch.ones(B, 5, 5))
    torch.testing.assert_close(b[0], points[..., :2] / points[..., 2:], rtol=0, atol=3e-3)  # of a curve, its mean


def test_only_a_position_that_shows_the_image_everywhere_is_seen():
    valid = torch.ones(1, 6, 6, dtype=torch.bool)
    valid[0, 0, 5] = valid[0, 3, 1] = False
    assert visible_positions(valid, torch.zeros(1, 3, 3, 2)).tolist() == [[[1, 1, 0], [0, 1, 1], [1, 1, 1]]]
    # Positions of 2.4 pixels: the pixel that two of them share hides both.
    valid = torch.ones(1, 12, 12, dtype=torch.bool)
    valid[0, 0, 2] = False
    assert visible_positions(valid, torch.zeros(1, 5, 5, 2))[0, 0].tolist() == [0, 0, 1, 1, 1]
    assert visible_positions(None, torch.zeros(2, 3, 4, 5)).shape == (2, 3, 4)


WARPS = {"one view": None, "shifted": shift(0.25, -0.5), "turned": warp([[0.8, 0.2, 0], [-0.2, 0.8, 0.2], [0, 0, 1.0]])}


@given(
    st.sampled_from(sorted(WARPS)),
    st.sampled_from([(4, 4), (4, 8), (8, 4), (3, 8)]),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 23), st.integers(0, 23)), max_size=4),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 23), st.integers(0, 23)), max_size=4),
    st.sampled_from([1e6, float("nan"), float("inf")]),
)
@settings(max_examples=80, deadline=None)
def test_what_is_hidden_changes_neither_value_nor_gradient(kind, grids, hidden, hidden_too, nonsense):
    masks = []
    for places in (hidden, hidden_too):
        mask = torch.ones(B, 24, 24, dtype=torch.bool)
        for i, y, x in places:
            mask[i, y : y + 4, x : x + 4] = False
        masks.append(mask)
    overlap = Overlap(WARPS[kind], *masks)

    def run(filling: float) -> tuple[torch.Tensor, torch.Tensor]:
        maps = [map_of(n, n, seed) for seed, n in enumerate(grids)]
        for spatial, mask in zip(maps, masks, strict=True):
            spatial[visible_positions(mask, spatial) == 0] = filling
        student = maps[0].requires_grad_()
        a, b, seen = on_common_grid(student, maps[1], overlap)
        loss = masked_mean(balanced(a, b), torch.ones(B), seen)
        loss.backward()
        return loss.detach(), student.grad

    for found, expected in zip(run(nonsense), run(0.0), strict=True):
        assert torch.equal(found, expected) and found.isfinite().all()


def test_a_mean_over_what_is_seen_of_a_position():
    fine = torch.arange(16.0).view(1, 4, 4, 1)
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    mask[0, 0, 0] = False
    for overlap in (Overlap(None, None, mask), Overlap(shift(0, 0)[:1], None, mask)):
        _, b, seen = on_common_grid(torch.zeros(1, 2, 2, 1), fine, overlap)
        torch.testing.assert_close(b[0, 0, 0, 0], torch.tensor((1 + 4 + 5) / 3))
        torch.testing.assert_close(seen, torch.tensor([[[0.75, 1], [1, 1]]]))


def test_nothing_in_common_is_nothing_learned():
    student = map_of(4, 4).requires_grad_()
    a, b, seen = on_common_grid(student, map_of(4, 4, 1), Overlap(shift(2, 0)))
    loss = masked_mean(balanced(a, b), torch.ones(B), seen)
    loss.backward()
    assert loss == 0 and not student.grad.any()


@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_maps_that_are_not_square(shape):
    student, teacher = map_of(*shape), map_of(shape[0] * 2, shape[1] * 2, 1)
    _, b, _ = on_common_grid(student, teacher, Overlap(shift(1 / shape[1], 1 / shape[0])))
    pooled = to_grid(teacher, shape)
    torch.testing.assert_close(b[:, :-1, :-1], pooled[:, 1:, 1:], rtol=1e-4, atol=1e-4)
