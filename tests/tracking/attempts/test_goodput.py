"""Where the time went: closed forms over lines as runs leave them, and sums that must hold for any."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.tracking.attempts.attempts import NAME as ATTEMPTS
from radioplat.tracking.attempts.goodput import (
    FILE,
    Goodput,
    compact,
    count,
    goodput,
    held_by_replicas,
    price_of,
    read_accounts,
)
from radioplat.tracking.attempts.logs import attempt_folder, write_last_words
from radioplat.tracking.teacher_cost import Prices, TeacherCost, TeacherCosts

ZERO = dict.fromkeys(("useful", "skipped", "data", "teachers", "checkpoint", "validation"), 0.0)


def run(time: float) -> dict:
    return {"event": "run", "time": time}


def end(time: float) -> dict:
    return {"event": "end", "time": time}


def begin(time: float, attempt: int, step: int, gpus: float = 0, cpus: float = 2, on_cluster: bool = True) -> dict:
    held = {"world_size": 2, "gpus": gpus, "cpus": cpus, "on_cluster": on_cluster}
    return {"event": "begin", "time": time, "attempt": attempt, "step": step, **held}


def steps(time: float, attempt: int, step: int, first_time: float, samples: int, **parts: float) -> dict:
    place = {"attempt": attempt, "step": step, "first_time": first_time, "samples": samples}
    return {"event": "steps", "time": time, **place, **ZERO, **parts}


# 0: the command; 10: first step; 20: checkpoint at step 4; 26: step 6, then the worker dies; 30: attempt 2 begins at 4;
# 35: its first step; 50: step 10, the end; 52: the command ends.
BEATEN = [
    run(0),
    begin(5, 1, 0),
    steps(20, 1, 4, 10, 40, useful=6, data=2, teachers=1, checkpoint=1),
    steps(26, 1, 6, 10, 60, useful=11, data=3, teachers=1, checkpoint=1),
    begin(30, 2, 4),
    steps(50, 2, 10, 35, 60, useful=12, data=1, checkpoint=2),
    end(52),
]


def test_waiting_for_the_slowest_worker_is_a_part_of_its_own_that_earlier_versions_did_not_write():
    found = count([run(0), begin(1, 1, 0), steps(11, 1, 4, 1, 40, useful=6, ranks=4), end(11)])
    assert found.seconds["ranks"] == 4 and found.seconds["useful"] == 6 and found.seconds["other"] == 0
    assert count(BEATEN).seconds["ranks"] == 0  # its lines have no such part


def test_a_run_that_was_beaten_once():
    found = count(BEATEN)
    assert found.wall == 52
    assert found.seconds["start"] == 10
    assert found.seconds["recovery"] == 35 - 20  # from the checkpoint to the first step after it
    assert found.seconds["useful"] == 6 + 12 and found.seconds["data"] == 2 + 1 and found.seconds["checkpoint"] == 1 + 2
    assert found.seconds["teachers"] == 1
    assert found.seconds["other"] == 52 - 10 - 15 - 18 - 3 - 3 - 1
    assert (found.samples, found.replayed) == (40 + 60, 20)
    assert [number for number, _, _ in found.restarts] == [1]
    assert found.kpi()["run/images_per_s"] == pytest.approx(100 / 52)


@pytest.mark.parametrize(("outage", "storage", "data"), [(2, 2, 1), (7, 3, 0)])
def test_an_outage_is_waiting_for_storage_as_far_as_training_waited_for_data(outage, storage, data):
    failing = {"event": "storage", "time": 18, "seconds": outage}
    found = count([*BEATEN[:2], failing, *BEATEN[2:]])
    assert (found.seconds["storage"], found.seconds["data"]) == (storage, data)
    assert sum(found.seconds.values()) == found.wall == 52 and failing in compact([*BEATEN[:2], failing, *BEATEN[2:]])


def test_a_pause_between_two_starts_is_not_wall_time():
    lines = [
        run(0),
        begin(1, 1, 0),
        steps(10, 1, 4, 2, 40, useful=8),
        steps(13, 1, 5, 2, 50, useful=10),
        run(1000),
        begin(1003, 2, 4),
        steps(1020, 2, 10, 1005, 60, useful=15),
        end(1020),
    ]
    found = count(lines)
    assert found.wall == 13 + 20
    assert found.seconds["start"] == 2 + 5 and found.seconds["recovery"] == 13 - 10 and found.seconds["useful"] == 23
    assert found.replayed == 10


def test_a_start_with_nothing_left_to_do_changes_no_figure_of_the_run():
    assert count([*BEATEN, run(900), end(930), run(1000), end(1013)]) == count(BEATEN)


def test_an_attempt_that_came_to_no_step_belongs_to_the_way_back():
    lines = [*BEATEN[:4], begin(28, 2, 4), *({**line, "attempt": 3} for line in BEATEN[4:6]), BEATEN[6]]
    found = count(lines)
    assert found.seconds["recovery"] == 15 and len(found.restarts) == 2


def test_compact_lines_count_alike():
    many = [*BEATEN[:2], *(steps(11 + i, 1, i, 10, 10 * i, useful=i) for i in range(1, 4)), *BEATEN[2:]]
    assert len(compact(many)) < len(many) and count(compact(many)) == count(many)


@st.composite
def histories(draw):
    """Runs of several starts and attempts, each from a checkpoint of the one before it, with a step a second or so."""
    now, number, lines, saved = 0.0, 0, [], 0
    for _ in range(draw(st.integers(1, 3))):
        now += draw(st.floats(0, 100))
        lines.append(run(now))
        for _ in range(draw(st.integers(0, 3))):
            number += 1
            now += draw(st.floats(0.1, 5))
            lines.append(begin(now, number, saved))
            first, step, sums = now + 1, saved, dict(ZERO)
            now = first
            begun = saved
            for _ in range(draw(st.integers(0, 4))):
                step += draw(st.integers(1, 3))
                for part in ZERO:
                    spent = draw(st.floats(0, 2))
                    sums[part] += spent
                    now += spent
                lines.append(steps(now, number, step, first, 10 * (step - begun), **sums))
                if draw(st.booleans()):
                    saved = step
        if draw(st.booleans()):
            now += draw(st.floats(0, 3))
            lines.append(end(now))
    return lines


@given(histories())
def test_the_parts_add_up_to_the_wall_time_and_none_is_negative(lines):
    found = count(lines)
    assert sum(found.seconds.values()) == pytest.approx(found.wall, abs=1e-6)
    assert all(value >= 0 for value in found.seconds.values())
    assert found.wall == pytest.approx(sum(stop - start for start, stop in _sessions(lines)))
    assert count(compact(lines)) == found


def _sessions(lines):
    starts = [i for i, line in enumerate(lines) if line["event"] == "run"]
    while len(starts) > 1 and all(line["event"] != "begin" for line in lines[starts[-1] :]):
        lines = lines[: starts.pop()]  # a last start with nothing to do
    for i, j in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[i]["time"], lines[j - 1]["time"]


def test_causes_come_from_the_drivers_book_and_from_last_words(tmp_path):
    text = "".join(json.dumps(line) + "\n" for line in BEATEN) + '{"event": "st'
    (tmp_path / FILE).write_text(text)
    assert goodput(tmp_path).restarts == [(1, "unknown", "")]
    line = {"attempt": 1, "time": 0.0, "world_size": 1, "from_step": 0, "event": "end"}
    line |= {"cause": "worker_killed", "detail": "rank 1 is gone"}
    (tmp_path / ATTEMPTS).write_text(json.dumps(line) + "\n")
    assert goodput(tmp_path).restarts == [(1, "worker_killed", "rank 1 is gone")]
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    write_last_words(tmp_path, 1, 1, "hang", "no progress for 9 s")
    assert goodput(tmp_path).restarts == [(1, "hang", "rank 1: no progress for 9 s")]
    assert len(read_accounts(tmp_path)) == len(BEATEN)
    assert goodput(tmp_path / "nothing") is None


def test_the_price_is_what_was_held():
    found = count(BEATEN)
    assert found.cpu_seconds == 52 * 2 and found.gpu_seconds == 0
    costs = TeacherCosts({"a": TeacherCost(seconds=10, cpu_seconds=5, held_seconds=40), "b": TeacherCost()})
    prices = Prices(None, 3.6)
    assert price_of(found, None, prices) == pytest.approx(104 * 3.6 / 3600)
    assert price_of(found, costs, prices) == pytest.approx((104 + 40 * 0.5) * 3.6 / 3600)
    assert price_of(found, costs, prices, shared=["a"]) == pytest.approx((104 + 5) * 3.6 / 3600)
    assert price_of(found, costs, prices, inline=["a"]) == pytest.approx(104 * 3.6 / 3600)
    assert price_of(found, costs, Prices(2.0, None)) is None
    assert [held.cpu_seconds for held in held_by_replicas(costs)] == [40 * 0.5]
    assert [held.cpu_seconds for held in held_by_replicas(costs, shared=["a"])] == [5]
    assert list(held_by_replicas(costs, inline=["a"])) == list(held_by_replicas(None)) == []


def test_tables_and_the_file(tmp_path):
    found = count(BEATEN)
    found.restarts, found.price, found.lost = [(1, "hang", "rank 1")], 1.5, 0
    found.write(tmp_path)
    assert Goodput.read(tmp_path) == found and Goodput.read(tmp_path / "none") is None
    parts, facts, restarts = found.tables()
    assert ("useful steps", f"{18 / 52:.1%}", 18.0) in parts.rows
    assert ("samples lost", 0) in facts.rows and ("price", 1.5) in facts.rows
    assert restarts.rows == [(1, "hang", "rank 1")]


@pytest.mark.parametrize(
    "change", [lambda it: it.update(from_tomorrow=1), lambda it: it.pop("restarts"), lambda it: it.clear()]
)
def test_a_summary_of_another_version_counts_as_none(tmp_path, change):
    path = Goodput().write(tmp_path)
    assert Goodput.read(tmp_path) is not None
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))
    assert Goodput.read(tmp_path) is None


@pytest.mark.parametrize("text", ["{}", "[]", '{"teachers": {"a": {"images": 1}}}', "{"])
def test_teacher_costs_of_another_version_count_as_none(tmp_path, text):
    (tmp_path / "teacher_cost.json").write_text(text)
    assert TeacherCosts.read(tmp_path) is None
