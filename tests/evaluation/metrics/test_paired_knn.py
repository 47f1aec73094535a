"""The difference of two models on the same images, and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from radioplat.evaluation.metrics.paired_knn import paired


def test_the_interval_is_that_of_drawing_images_and_of_the_normal_distribution():
    rng = np.random.default_rng(3)
    first = rng.random(400) < 0.7
    second = np.where(rng.random(400) < 0.15, ~first, first)  # they differ on 15 % of the images
    result = paired(first, second, draws=40_000)
    gaps = second.astype(float) - first.astype(float)
    assert result.difference == pytest.approx(gaps.mean()) and result.count == 400
    drawn = [gaps[rng.integers(0, 400, 400)].mean() for _ in range(4000)]
    assert (result.low, result.high) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])), abs=0.005)
    spread = 1.96 * gaps.std() / 20
    assert result.high - result.low == pytest.approx(2 * spread, rel=0.06)
    alone = 1.96 * np.sqrt(first.var() / 400 + second.var() / 400)
    assert spread < 0.7 * alone  # what pairing is for


def test_models_that_answer_alike_differ_by_nothing():
    answers = np.array([True, False, True])
    assert paired(answers, answers) == paired(answers, answers.copy())
    assert (paired(answers, answers).difference, paired(answers, answers).low) == (0, 0)
