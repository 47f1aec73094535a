"""``pipeline.json``: what is read back, the progress of the whole, and that of another version."""

from __future__ import annotations

import json

import pytest

from radioplat.errors import RadioplatError
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tasks.pipeline.record import SCHEMA, NodeEntry, Record, State
from radioplat.tracking.record_versions import NewerRecord, Versions


@pytest.fixture
def record(tmp_path) -> Record:
    """Two nodes in the second start: one is done, the other one at step 3 of 4."""
    record = Record(tmp_path)
    record.begin()
    record.begin()
    outcome = Outcome("there", 5, 7, facts={"steps": 4})
    done = NodeEntry("a", "distill", [], "f", State.done, [1], outcome, {"there/x": "0"}, 2.0, 4, 4, 8.0, 16.0, 0.5)
    record.entries = {"a": done, "b": NodeEntry("b", "train", ["a"], "g", State.running, [1, 2], step=3, steps=4)}
    record.write()
    return record


def test_it_is_read_back(record, tmp_path):
    again = Record(tmp_path)
    assert again.entries == record.entries and again.starts == record.starts
    assert [start.number for start in again.starts] == [1, 2] and again.progress == 7 / 8
    assert again.totals() == {"seconds": 2.0, "gpu_seconds": 8.0, "cpu_seconds": 16.0, "price": 0.5}
    content = json.loads(record.path.read_text())
    assert content["progress"] == 7 / 8 and content["totals"]["price"] == 0.5


def test_a_newer_one_is_refused_and_a_damaged_one_is_named(record, tmp_path):
    content = json.loads(record.path.read_text())
    record.path.write_text(json.dumps(content | {"schema": SCHEMA + 1}))
    Versions("9.9", {"status": 1}).write(tmp_path)
    with pytest.raises(NewerRecord, match=f"its content has schema {SCHEMA + 1}, written by radioplat 9.9"):
        Record(tmp_path)
    record.path.write_text("{")
    with pytest.raises(RadioplatError, match="pipeline.json: cannot be read"):
        Record(tmp_path)
