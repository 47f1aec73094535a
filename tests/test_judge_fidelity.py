"""The judge of heads: the teacher itself is 1, a constant answer 0, and shapes must agree."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.judges.embeddings import UnfitFile
from benchmarks.judges.fidelity import fidelity
from benchmarks.judges.resampling import difference


def maps(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(3, 2, (200, 3, 3, 8)).astype(np.float32)


def test_the_teacher_is_one_and_a_constant_answer_is_nothing():
    teacher = maps(0)
    assert fidelity(teacher, teacher).figure == pytest.approx(1, abs=1e-6)
    mean = teacher.reshape(-1, 8).mean(0)
    assert fidelity(mean - 2 * (teacher - mean), teacher).figure == pytest.approx(-1, abs=1e-6)
    assert fidelity(np.broadcast_to(mean, teacher.shape), teacher).figure == 0
    assert abs(fidelity(maps(1), teacher).figure) < 0.05
    pooled = teacher.mean((1, 2))
    assert fidelity(pooled, pooled).figure == pytest.approx(1, abs=1e-6)


def test_the_cosine_is_numpys_of_centred_features():
    teacher, student = maps(0), 0.5 * maps(0) + maps(2)
    mean = teacher.reshape(-1, 8).mean(0)
    expected = [
        np.mean([np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(x, y, strict=True)])
        for x, y in zip((student - mean).reshape(200, 9, 8), (teacher - mean).reshape(200, 9, 8), strict=True)
    ]
    np.testing.assert_allclose(fidelity(student, teacher).right[:, 0], expected, rtol=1e-5)


def test_a_nearer_student_is_better_beyond_doubt():
    teacher = maps(0)
    near, far = (fidelity(teacher + noise * maps(3), teacher) for noise in (0.3, 0.6))
    assert difference([near], [far]).lower > 0
    same = difference([near], [near])
    assert (same.value, same.lower, same.upper) == (0, 0, 0)


def test_another_shape_is_named():
    with pytest.raises(UnfitFile, match=r"student: its head gives \(3, 3, 4\) where the teacher gives \(3, 3, 8\)"):
        fidelity(maps(0)[..., :4], maps(0), "student")
