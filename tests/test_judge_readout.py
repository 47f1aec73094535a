"""The judge that reads a teacher from a student's features: closed forms, and a library's ridge regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from benchmarks.judges.fidelity import fidelity
from benchmarks.judges.readout import read, ridges


def test_it_is_the_ridge_regression_of_scikit_learn():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 12)) + 3, rng.normal(size=(60, 5)) - 2
    centred = x - x.mean(0)
    for strength in (1e-3, 0.1, 10.0):
        alpha = strength * np.square(centred).mean() * len(x)
        expected = Ridge(alpha=alpha).fit(x, y).predict(x[:7])
        assert ridges(x, y, [strength])[0](x[:7]) == pytest.approx(expected, abs=1e-9)


def test_a_linear_map_of_the_teacher_is_the_teacher_and_noise_is_a_constant():
    rng = np.random.default_rng(1)
    teacher = rng.normal(size=(500, 6)) + 5
    student = teacher @ rng.normal(size=(6, 9)) + 1
    whole = fidelity(read(student[:400], student[400:], teacher[:400]), teacher[400:])
    assert whole.right.mean() > 0.999
    noise = rng.normal(size=(500, 9))
    nothing = fidelity(read(noise[:400], noise[400:], teacher[:400]), teacher[400:])
    assert abs(nothing.right.mean()) < 0.2
