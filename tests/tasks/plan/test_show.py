"""Problems come first, and once; the command then ends with an error."""

from __future__ import annotations

from radioplat.errors import Problem
from radioplat.tasks.plan.findings import Plan
from radioplat.tasks.plan.show import show


def test_problems_come_before_the_rest(capsys):
    plan = Plan(facts={"device": "two"}, problems=[Problem("no such folder", "dataset.a"), Problem("too large", "b")])
    assert not show(plan)
    shown = capsys.readouterr()
    assert "cannot start: 2 problems" in shown.err
    assert "dataset.a: no such folder" in shown.err and "b: too large" in shown.err and "device: two" in shown.out


def test_a_plan_without_problems_says_that_the_run_can_start(capsys):
    assert show(Plan(facts={"device": "two"}))
    assert capsys.readouterr().out.endswith("this run can start\n")
