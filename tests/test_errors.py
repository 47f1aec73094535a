"""How a problem is shown, and that errors survive the way between processes."""

from __future__ import annotations

import ast
import os
import pickle
from pathlib import Path

import pytest

import radioplat.errors
from radioplat.errors import Problem, RadioplatError, SpecError, Stopped


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (Problem("it is gone", "a.b", "Look."), "a.b: it is gone. Look."),
        (Problem("which one?", "a.b", "One of x, y."), "a.b: which one? One of x, y."),
        (Problem("it is gone"), "it is gone"),
    ],
)
def test_a_problem_is_a_sentence_and_what_to_do(problem, line):
    assert str(problem) == line


def test_place_and_advice_are_given_by_name():
    """A second positional argument would be a second problem."""
    names = [n for n, c in vars(radioplat.errors).items() if isinstance(c, type) and issubclass(c, RadioplatError)]
    wrong = []
    for path in Path(radioplat.errors.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in names and len(node.args) > 1:
                texts = [argument for argument in node.args[1:] if not isinstance(argument, ast.Starred)]
                wrong += [f"{path}:{node.lineno}" for _ in texts]
    assert not wrong


@pytest.mark.parametrize(
    "error", [Stopped(), SpecError(Problem("it is gone", "a.b"), Problem("and this", hint="Look."))]
)
def test_an_error_can_be_pickled(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)
    if isinstance(error, RadioplatError):
        assert copy.problems == error.problems
    else:
        assert copy.code == os.EX_TEMPFAIL
