"""The front against a direct reading of its definition, and what is chosen of it."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from radioplat.tasks.tune.pareto import choose, dominates, draw, front
from radioplat.tasks.tune.trial_record import State, TrialRecord, claim, read_trials

MODES = {"fidelity": "max", "macs": "min"}


def trials(points):
    return [TrialRecord(i, {}, State.done, {"fidelity": a, "macs": b}) for i, (a, b) in enumerate(points)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_the_front_is_what_nobody_beats(points):
    found = {record.number for record in front(trials(points), MODES)}
    for i, (a, b) in enumerate(points):
        beaten = any(c >= a and d <= b and (c, d) != (a, b) for c, d in points)
        assert (i in found) == (not beaten)


def test_equal_ones_beat_nobody():
    assert not dominates({"fidelity": 1, "macs": 1}, {"fidelity": 1, "macs": 1}, MODES)


def test_the_chosen_one_is_near_the_best_of_everything():
    known = trials([(1.0, 100), (0.9, 20), (0.0, 10), (0.5, 90)])
    assert [record.number for record in front(known, MODES)] == [0, 1, 2]
    assert choose(known, MODES).number == 1
    assert choose(known, {"fidelity": "max"}).number == 0
    assert choose([TrialRecord(0, {})], MODES) is None


def test_the_picture_is_one():
    known = trials([(1.0, 100), (0.9, 20), (0.5, 90)])
    for modes in (MODES, {"fidelity": "max"}):
        with Image.open(io.BytesIO(draw(known, modes, known[1]))) as image:
            assert image.format == "PNG" and image.width > 400


def test_folders_are_claimed_once_and_again_by_their_owner(tmp_path):
    first = claim(tmp_path, {"a": 1}, "s1/t1")
    assert claim(tmp_path, {"a": 1}, "s1/t2").number == 1  # t1 still runs
    assert claim(tmp_path, {"a": 5}, "s1/t1").number == 0  # its own, with what PBT changed
    assert claim(tmp_path, {"a": 1}, "s2/t9").number == 0  # of a start that is gone
    first.state, first.metrics = State.done, {"macs": 3}
    first.write(tmp_path)
    same = claim(tmp_path, {"a": 1}, "s2/t7")
    assert (same.number, same.state, same.metrics, same.reason) == (1, State.running, {}, "")
    other = claim(tmp_path, {"a": 1}, "s2/t8")
    assert (other.number, other.state, other.metrics) == (2, State.done, {"macs": 3})
    assert claim(tmp_path, {"b": 1}, "s2/t3", number=7).name == "trial_0007"
    assert [record.number for record in read_trials(tmp_path)] == [0, 1, 2, 7]
