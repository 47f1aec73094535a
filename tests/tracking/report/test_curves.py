import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.tracking.report.curves import curves_from_status, draw_curves, group_curves, running_mean
from radioplat.tracking.status import StatusLog


def log_steps(path, steps, value):
    with StatusLog(path) as log:
        for step in steps:
            log.progress(
                epoch=0,
                max_epoch=1,
                step=step,
                max_step=9,
                seconds_per_step=1,
                steps_per_epoch=9,
                kpi={"loss": value(step), "note": "text"},
            )


def test_curve_reads_back_what_was_logged(tmp_path):
    path = tmp_path / "status.json"
    log_steps(path, range(1, 5), lambda s: s / 2)
    assert curves_from_status(path) == {"loss": [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]}


def test_replayed_steps_replace_the_lost_ones(tmp_path):
    path = tmp_path / "status.json"
    log_steps(path, range(1, 7), lambda s: 1.0)
    log_steps(path, [3, 5], lambda s: 2.0)  # resumed after step 2, and logging every second step
    assert curves_from_status(path)["loss"] == [(1, 1.0), (2, 1.0), (3, 2.0), (5, 2.0)]


def test_value_that_is_not_finite_leaves_a_gap(tmp_path):
    path = tmp_path / "status.json"
    log_steps(path, range(1, 4), lambda s: float("nan") if s == 2 else 1.0)
    assert curves_from_status(path)["loss"] == [(1, 1.0), (3, 1.0)]


def test_no_file_no_curves(tmp_path):
    assert curves_from_status(tmp_path / "none.json") == {}


def test_one_chart_a_teacher():
    curve = [(1, 1.0)]
    names = ["lr", "loss/clip/summary", "loss/clip/spatial", "loss/sam/spatial", "loss"]
    groups = group_curves(dict.fromkeys(names, curve))
    assert {title: list(lines) for title, lines in groups.items()} == {
        "loss": ["total"],
        "loss, teacher clip": ["summary", "spatial"],
        "loss, teacher sam": ["spatial"],
        "lr": ["lr"],
    }


@pytest.mark.parametrize("count", [1, 3, 500])
def test_chart_is_a_png_of_the_asked_size(count):
    png = draw_curves("loss", {"a": [(i, 1.0 + i) for i in range(count)], "b": [(0, 1e-3)]})
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24]) == (806, 460)
    with_images = draw_curves("loss", {"a": [(i, 1.0 + i) for i in range(count)], "b": [(0, 1e-3)]}, 32)
    assert with_images != png and with_images[16:24] == png[16:24]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.integers(0, 10))
def test_running_mean(values, window):
    means = running_mean(values, window)
    for i, mean in enumerate(means):
        near = values[max(0, i - window) : i + window + 1]
        assert mean == pytest.approx(sum(near) / len(near), abs=1e-6)
