"""How long an execution of Ray Data pauses between two turns of its loop."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from radioplat.data.loading.execution_pace import LONGEST_S, SHORTEST_S, ExecutionPace


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.mark.parametrize("what", ["num_tasks_submitted", "num_task_outputs_generated", "num_outputs_taken"])
def test_pauses_grow_until_something_happens(clock, what):
    counts = {"num_tasks_submitted": 1, "num_task_outputs_generated": 0, "num_outputs_taken": 0}
    metrics = SimpleNamespace(**counts)
    executor = SimpleNamespace(_topology=[SimpleNamespace(metrics=metrics)])
    pace = ExecutionPace()
    for _ in range(50):
        pace.on_execution_step(executor)
    assert clock.slept[0] == SHORTEST_S
    assert clock.slept == sorted(clock.slept)
    assert clock.slept[-1] == LONGEST_S
    setattr(metrics, what, getattr(metrics, what) + 1)
    pace.on_execution_step(executor)
    assert clock.slept[-1] == SHORTEST_S


@pytest.mark.parametrize("said", [None, "0"])
def test_usage_statistics_are_off_unless_the_environment_says_otherwise(monkeypatch, said):
    monkeypatch.setenv("RAY_DATA_USAGE_DISABLED", said or "")
    if said is None:
        monkeypatch.delenv("RAY_DATA_USAGE_DISABLED")
    ExecutionPace().before_execution_starts(None)
    assert os.environ["RAY_DATA_USAGE_DISABLED"] == (said or "1")
