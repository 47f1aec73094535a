"""attempts.jsonl: whole lines whatever is killed, one end for each start."""

from __future__ import annotations

import json

import pytest

from radioplat.tracking.attempts.attempts import Attempts


def test_a_start_is_ended_once(tmp_path):
    attempts = Attempts(tmp_path)
    assert attempts.read() == [] and attempts.last == 0 and attempts.unended() is None
    assert attempts.start(1, 2, 0) is None
    assert attempts.unended().world_size == 2
    attempts.end("worker_killed", "rank 1 is gone")
    attempts.end("done")  # nothing runs: nothing is written
    before = attempts.start(2, 1, 40)
    assert (before.cause, before.detail, before.attempt) == ("worker_killed", "rank 1 is gone", 1)
    attempts.end("done")
    assert [(e.attempt, e.event, e.cause, e.from_step) for e in attempts.read()] == [
        (1, "start", "", 0),
        (1, "end", "worker_killed", 0),
        (2, "start", "", 40),
        (2, "end", "done", 40),
    ]
    assert attempts.last == 2


def test_a_start_after_an_unended_one_ends_it(tmp_path):
    attempts = Attempts(tmp_path)
    attempts.start(1, 1, 0)
    assert attempts.start(2, 1, 10).cause == "unknown"
    assert [e.event for e in attempts.read()] == ["start", "end", "start"]


def test_a_torn_line_costs_only_itself(tmp_path):
    attempts = Attempts(tmp_path)
    attempts.start(1, 1, 0)
    with attempts.path.open("a") as file:
        file.write('{"attempt": 1, "time": 3.')
    attempts.end("error", "a\nb" + "x" * 5000)
    events = attempts.read()
    assert [e.event for e in events] == ["start", "end"]
    assert all(json.loads(line) for line in attempts.path.read_text().splitlines() if line.endswith("}"))
    assert len(events[-1].detail) == 2000


def test_an_unknown_cause_is_refused(tmp_path):
    attempts = Attempts(tmp_path)
    attempts.start(1, 1, 0)
    with pytest.raises(ValueError, match="'tired' is none of"):
        attempts.end("tired")
