"""How a problem is shown, and that errors survive the way between processes."""

from __future__ import annotations

import os
import pickle

import pytest

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
