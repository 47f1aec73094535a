"""Boxes are cleaned with an account of it, and follow their image into views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radioplat.data.detection.boxes import Boxes, Faults, clean_boxes
from radioplat.data.images.decode import Decoded
from radioplat.data.views.boxes import view_boxes
from radioplat.data.views.crops import Box, Crop
from radioplat.data.views.equivariance import quadrilateral
from radioplat.data.views.render import render, view_matrix

ANY = st.floats(-60, 160, allow_nan=False)


@example([(0, 0, 5.8e-84, 1.4e-279)])  # sides above 0, and an area of 0
@example([(-50, -50, 1e-200, 1e-200)])  # what is inside has none
@example([(-50, -50, 1e-160, 1e-160)])
@given(st.lists(st.tuples(ANY, ANY, ANY, ANY), max_size=12))
@settings(max_examples=100, deadline=None)
def test_cleaned_boxes_lie_inside_and_every_other_one_is_counted(corners):
    faults = Faults()
    boxes = clean_boxes(Boxes.of(corners, range(len(corners))), 100, 80, faults, "x")
    low, high = boxes.xyxy[:, :2], boxes.xyxy[:, 2:]
    assert (low >= 0).all() and (high <= (100, 80)).all() and (high > low).all()
    assert len(boxes) + faults.counts["zero_area"] + faults.counts["outside"] == len(corners)
    assert (boxes.area > 0).all()
    for box, label in zip(boxes.xyxy, boxes.labels, strict=True):
        x0, y0, x1, y1 = corners[label]
        np.testing.assert_array_equal(box, [max(x0, 0), max(y0, 0), min(x1, 100), min(y1, 80)])


def test_reasons_are_told_apart():
    faults = Faults()
    raw = [(5, 5, 5, 9), (9, 5, 5, 9), (-9, 0, 0, 9), (90, 70, 120, 90), (1, 1, 2, 2)]
    kept = clean_boxes(Boxes.of(raw, range(5), area=[1, 1, 1, 300, 0.5]), 100, 80, faults, "a.jpg")
    assert faults.counts == {"zero_area": 2, "outside": 1, "clipped": 1}
    assert ("clipped", "a.jpg") in faults.named
    assert kept.labels.tolist() == [3, 4] and kept.xyxy[0].tolist() == [90, 70, 100, 80]
    np.testing.assert_allclose(kept.area, [300 * 100 / 600, 0.5])


def test_normalized_is_centre_and_size_as_shares():
    np.testing.assert_allclose(Boxes.of([(10, 20, 30, 80)], [0]).normalized(100, 200), [[0.2, 0.25, 0.2, 0.3]])
    assert Boxes.none().normalized(9, 9).shape == (0, 4)


def painted(box: tuple[float, ...], width: int, height: int) -> np.ndarray:
    """White where the box is."""
    rgb = np.zeros((height, width, 3), np.uint8)
    x0, y0, x1, y1 = (int(v) for v in box)
    rgb[y0:y1, x0:x1] = 255
    return rgb


def seen_box(pixels: np.ndarray) -> np.ndarray:
    rows, columns = np.nonzero(pixels[..., 0] > 127)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], float)


@given(
    st.booleans(), st.booleans(), st.one_of(st.sampled_from([0.0, 90.0, 180.0, 270.0]), st.floats(0, 360)),
    st.tuples(*[st.floats(0, 1)] * 4), st.one_of(st.none(), st.lists(st.floats(-0.15, 0.15), min_size=8, max_size=8)),
    st.tuples(*[st.integers(0, 30)] * 4),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_a_box_is_where_the_view_shows_its_object(hflip, vflip, angle, place, jitter, sides):
    """What is painted in the source is found, in the rendered view, inside the box and touching its four sides."""
    width, height, size = 200, 160, 128
    w, h = 80 + place[0] * (width - 80), 80 + place[1] * (height - 80)
    left, top = place[2] * (width - w), place[3] * (height - h)
    square = None
    if jitter is not None:
        square = quadrilateral(np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) + np.reshape(jitter, (4, 2)))
    matrix = view_matrix(Crop(Box(left, top, left + w, top + h), hflip, vflip, angle).matrix(), size, square)
    x, y = 40 + sides[0] * 2, 30 + sides[1] * 2
    box = (x, y, x + 20 + sides[2], y + 20 + sides[3])
    pixels, _ = render(Decoded(painted(box, width, height), width, height), matrix, size)
    found = view_boxes(Boxes.of([box], [7]), matrix, size, min_visible=0.0, min_side=0.0)
    shown = (pixels[..., 0] > 127).sum()
    if not len(found):
        assert shown <= 4  # a corner that no pixel's centre shows
        return
    scale = 1.6 * max(1.0, size / min(w, h))  # bilinear edges, in view pixels
    assert found.labels.tolist() == [7]
    if shown > 30:
        # At a sharp corner of the polygon fewer than half of a pixel is white: it may reach a little further.
        gap = seen_box(pixels) - found.xyxy[0]
        assert gap[:2].min() > -scale and gap[2:].max() < scale
        assert np.abs(gap).max() < 3 * scale
        assert abs(found.area[0] - shown) < 0.05 * shown + 2 * scale * (found.xyxy[0][2:] - found.xyxy[0][:2]).sum()


def test_what_is_hardly_visible_is_left_out():
    matrix = view_matrix(Crop(Box(50, 0, 150, 100)).matrix(), 100)
    corners = [(0, 0, 55, 50), (40, 10, 60, 30), (150, 0, 160, 9), (60, 60, 60.5, 99)]
    boxes = Boxes.of(corners, range(4), [0, 1, 0, 0])
    seen = view_boxes(boxes, matrix, 100)
    assert seen.labels.tolist() == [1] and seen.crowd.tolist() == [True]
    np.testing.assert_allclose(seen.xyxy, [[0, 10, 10, 30]])
    np.testing.assert_allclose(seen.area, [200])
    assert view_boxes(boxes, matrix, 100, min_visible=0.09).labels.tolist() == [0, 1]
    assert len(view_boxes(Boxes.none(), matrix, 100)) == 0


def test_areas_of_objects_shrink_with_the_view():
    matrix = view_matrix(Crop(Box(0, 0, 200, 200)).matrix(), 100)
    seen = view_boxes(Boxes.of([(20, 20, 60, 60)], [0], area=[1000]), matrix, 100)
    np.testing.assert_allclose(seen.area, [250])


def test_a_corner_behind_the_horizon_is_cut_away():
    matrix = np.array([[1.0, 0, 0], [0, 1, 0], [0.005, 0, 1]])  # x = 200 of the source lies infinitely far to the right
    seen = view_boxes(Boxes.of([(10, 10, 500, 60)], [0]), matrix, 100, min_visible=0)
    assert seen.xyxy[0, 2] == 100 and seen.xyxy[0, 0] == pytest.approx(10 / (1 - 0.05))
