"""Windows of views: whole patches, independent, keyed; draws of resolutions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.views.equivariance import JITTER, SLACK, drawn_size, shift_windows, warp_windows
from radioplat.data.views.render import ViewSpec

SPAN = np.arange(400)


@given(st.sampled_from([(224, 16), (224, 14), (432, 16), (64, 32), (50, 16)]), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_shift_is_whole_patches_and_stays_inside(sizes, seed):
    size, patch = sizes
    windows = shift_windows(ViewSpec("student", size, patch), size, seed, SPAN)
    share = windows[:, 0, 0]
    assert share == pytest.approx(1 - SLACK)
    moved = windows[:, :2, 2] / (1 - SLACK) * size / patch  # in patches of this view
    np.testing.assert_allclose(moved, np.round(moved), atol=1e-9)
    assert moved.min() == 0 and (windows[:, :2, 2] + 1 - SLACK).max() <= 1 + 1e-9
    assert len(np.unique(np.round(moved))) == int(size / 4 / patch) + 1


def test_student_and_teachers_move_independently():
    moves = [shift_windows(ViewSpec(name, 432, 16), 432, 0, SPAN)[:, :2, 2] for name in ("student", "a", "b")]
    for i in range(3):
        for j in range(i):
            assert np.abs(np.corrcoef(moves[i].ravel(), moves[j].ravel())[0, 1]) < 0.15


def test_corners_stay_within_their_jitter_and_differ_between_views():
    a, b = (warp_windows(ViewSpec(name, 224), 0, SPAN) for name in ("student", "teacher"))
    corners = np.array([[0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]])
    mapped = corners @ a.transpose(0, 2, 1)
    off = mapped[..., :2] / mapped[..., 2:] - corners[:, :2]
    assert 0.9 * JITTER < np.abs(off).max() <= JITTER + 1e-9 and np.abs(off.mean((0, 1))).max() < 0.02
    assert np.abs(a - b).max() > 0.1 and (a == warp_windows(ViewSpec("student", 7), 0, SPAN)).all()


def test_resolutions_are_drawn_alike_by_all():
    pairs = ((192, 0.25), (224, 0.25), (256, 0.5))
    student, teacher = ViewSpec("student", 256, 16, pairs), ViewSpec("t", 256, 14, pairs)
    sizes = np.array([drawn_size(student, 3, micro_batch) for micro_batch in range(3000)])
    assert all(drawn_size(teacher, 3, micro_batch) == sizes[micro_batch] for micro_batch in range(50))
    for size, chance in pairs:
        assert np.mean(sizes == size) == pytest.approx(chance, abs=0.03)
    assert drawn_size(ViewSpec("s", 64), 3, 0) == 64
