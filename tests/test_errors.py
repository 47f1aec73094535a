"""How a problem is told."""

from __future__ import annotations

import pytest

from radioplat.errors import Problem


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (Problem("it is gone", "a.b", "Look."), "a.b: it is gone. Look."),
        (Problem("which one?", "a.b", "One of x, y."), "a.b: which one? One of x, y."),
        (Problem("it is gone"), "it is gone"),
    ],
)
def test_a_problem_is_a_sentence_and_what_to_do(problem, told):
    assert str(problem) == told
