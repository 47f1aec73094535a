"""Hooks in a list: the order of calls, the first decision to skip, figures and states by name."""

from __future__ import annotations

from radioplat.training.hooks.step_hook import StepHook, StepHooks
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord


class Recorder(StepHook):
    """Writes down each call, and may skip."""

    def __init__(self, name: str, calls: list[str], skip: str = "") -> None:
        self.name, self._calls, self._skip, self.loaded = name, calls, skip, None

    def begin_step(self, step):
        self._calls.append(f"{self.name} begin {step}")

    def losses(self, step, batch, losses, last):
        self._calls.append(f"{self.name} losses")
        return StepDecision(self._skip)

    def before_update(self, record):
        self._calls.append(f"{self.name} before_update")
        return StepDecision(self._skip)

    def after_step(self, record):
        self._calls.append(f"{self.name} sees {sorted(record.figures)}")

    def figures(self):
        return {self.name: 1.0}

    def state_dict(self):
        return {"of": self.name} if self.name != "b" else {}

    def load_state_dict(self, state):
        self.loaded = state


def test_they_are_called_in_order_and_one_may_come_between():
    calls: list[str] = []
    first, last = Recorder("a", calls), Recorder("c", calls)
    hooks = StepHooks([first, last])
    hooks.add_before(Recorder("b", calls), last)
    hooks.begin_step(3)
    assert calls == ["a begin 3", "b begin 3", "c begin 3"] and hooks.names == ["a", "b", "c"]


def test_the_first_that_skips_decides_and_the_rest_is_not_asked():
    calls: list[str] = []
    hooks = StepHooks([Recorder("a", calls), Recorder("b", calls, "because"), Recorder("c", calls)])
    assert hooks.losses(0, None, {}, last=True).skip == "because" and calls == ["a losses", "b losses"]
    calls.clear()
    assert hooks.before_update(StepRecord(0, 0.1)).skip == "because" and calls == ["a before_update", "b before_update"]
    assert StepHooks([StepHook()]).losses(0, None, {}, last=True) == CONTINUE


def test_figures_are_seen_by_the_hooks_behind():
    calls: list[str] = []
    record = StepRecord(0, 0.1)
    StepHooks([Recorder("a", calls), Recorder("b", calls)]).after_step(record)
    assert calls == ["a sees []", "b sees ['a']"] and record.figures == {"a": 1.0, "b": 1.0}


def test_states_go_by_name():
    a, b = Recorder("a", []), Recorder("b", [])
    hooks = StepHooks([a, b])
    assert hooks.states() == {"a": {"of": "a"}}
    hooks.load_states({"a": {"of": "a"}, "gone": {"x": 1}})
    assert a.loaded == {"of": "a"} and b.loaded is None
