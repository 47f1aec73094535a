"""What teachers cost: by hand, added up, written down."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.tracking.teacher_cost import Prices, TeacherCost, TeacherCosts

# 90 s of forwards on half a GPU and two CPUs each, of two replicas that were held for 100 s.
COST = TeacherCost(
    images=6000, cached=1500, bytes=24_000_000, seconds=90.0, gpu_seconds=45.0, cpu_seconds=180.0, held_seconds=200.0
)
COUNT, AMOUNT = st.integers(0, 2**50), st.floats(0, 1e9)
COSTS = st.builds(TeacherCost, COUNT, COUNT, COUNT, AMOUNT, AMOUNT, AMOUNT, AMOUNT)


def test_figures_by_hand():
    assert TeacherCosts({"clip": COST}, Prices(gpu_hour=4.0, cpu_hour=0.2)).figures("clip") == {
        "seconds_per_1000_images": pytest.approx(15.0),
        "bytes_per_image": pytest.approx(4000),
        "gpu_seconds_per_1000_images": pytest.approx(7.5),
        # (45 s x 4 + 180 s x 0.2) / 3600 = 0.06 for 6,000 images
        "price_per_1000_images": pytest.approx(0.01),
        "busy": pytest.approx(0.45),
    }


@pytest.mark.parametrize(
    ("gpu_seconds", "gpu_hour", "cpu_hour", "price"),
    [
        (45.0, None, None, None),
        (45.0, None, 0.2, None),  # the larger part has no price
        (45.0, 4.0, None, 0.05),  # the GPU's price has its CPUs in it
        (45.0, 4.0, 0.0, 0.05),
        (45.0, 0.0, 0.0, 0.0),  # one that is known to be nothing
        (0.0, 4.0, None, None),  # on the CPU, which has no price
        (0.0, None, 0.2, 0.01),
    ],
)
def test_what_is_not_known_has_no_price(gpu_seconds, gpu_hour, cpu_hour, price):
    cost = dataclasses.replace(COST, gpu_seconds=gpu_seconds)
    costs = TeacherCosts({"clip": cost}, Prices(gpu_hour, cpu_hour))
    assert costs.prices.of(cost) == (None if price is None else pytest.approx(price))
    assert ("cost/clip/price_per_1000_images" in costs.kpi()) == (price is not None)
    assert ("price / 1000" in costs.table().columns) == (price is not None)


def test_a_teacher_that_was_never_asked_has_no_figures():
    costs = TeacherCosts({"clip": TeacherCost()}, Prices(1.0, 1.0))
    assert costs.figures("clip") == {} == costs.kpi()
    assert costs.table().rows == [["clip", 0, None, None, None, None]]


def test_a_teacher_that_only_the_cache_answered_costs_nothing_but_was_held():
    cost = TeacherCost(images=1000, cached=1000, bytes=1000, held_seconds=50.0)
    assert TeacherCosts({"clip": cost}, Prices(4.0, 0.2)).figures("clip") == {
        "seconds_per_1000_images": 0.0,
        "bytes_per_image": 1.0,
        "gpu_seconds_per_1000_images": 0.0,
        "price_per_1000_images": 0.0,
        "busy": 0.0,
    }


@given(COSTS, COSTS, st.floats(0, 100), st.floats(0, 100))
def test_parts_add_up_and_so_do_their_prices(first, second, gpu_hour, cpu_hour):
    prices = Prices(gpu_hour, cpu_hour)
    both = first + second
    for field in dataclasses.fields(TeacherCost):
        assert getattr(both, field.name) == getattr(first, field.name) + getattr(second, field.name)
    assert both == second + first and both + TeacherCost() == both
    assert prices.of(both) == pytest.approx(prices.of(first) + prices.of(second), rel=1e-9, abs=1e-9)


@given(COSTS.filter(lambda cost: cost.images), st.integers(1, 1000), st.floats(0.01, 100))
def test_a_longer_run_of_the_same_costs_the_same_an_image(cost, times, price):
    longer = TeacherCost(*(times * value for value in dataclasses.astuple(cost)))
    costs = TeacherCosts({"one": cost, "longer": longer}, Prices(price, price))
    assert costs.figures("longer") == pytest.approx(costs.figures("one"), rel=1e-9)


@given(st.dictionaries(st.text(max_size=8), COSTS, max_size=3), st.none() | AMOUNT, st.none() | AMOUNT)
def test_what_is_written_is_read(tmp_path_factory, teachers, gpu_hour, cpu_hour):
    costs = TeacherCosts(teachers, Prices(gpu_hour, cpu_hour))
    folder = tmp_path_factory.mktemp("costs")
    path = costs.write(folder)
    assert TeacherCosts.read(folder) == costs
    found = json.loads(path.read_text())
    for name in teachers:  # the figures are there for whoever reads the file without us
        assert costs.figures(name).items() <= found["teachers"][name].items()


def test_nothing_written(tmp_path):
    assert TeacherCosts.read(tmp_path) is None


def test_columns_only_where_they_say_something():
    plain = TeacherCosts({"clip": dataclasses.replace(COST, cached=0)}).table()
    assert plain.columns == ["teacher", "images", "s / 1000", "MB / 1000", "GPU-s / 1000", "busy"]
    whole = TeacherCosts({"clip": COST, "sam": TeacherCost()}, Prices(4.0, 0.2)).table()
    assert whole.columns[2] == "from the cache" and whole.columns[-2] == "price / 1000"
    assert whole.rows[0] == ["clip", 6000, 1500, 15.0, 4.0, 7.5, pytest.approx(0.01), "45%"]
    assert whole.rows[1] == ["sam", 0, 0, None, None, None, None, None]
