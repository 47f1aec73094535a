"""Feature losses against their formulas, written out in numpy and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radioplat.losses.terms import feature


def pair(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(2, 3, 4, 7, generator=generator) for _ in range(2)]


def huber(d: np.ndarray, beta: float) -> np.ndarray:
    return np.where(np.abs(d) < beta, 0.5 * d**2 / beta, np.abs(d) - 0.5 * beta)


def one_minus_cosine(s: np.ndarray, t: np.ndarray) -> np.ndarray:
    return 1 - (s * t).sum(-1) / (np.linalg.norm(s, axis=-1) * np.linalg.norm(t, axis=-1))


FORMULAS = {
    feature.mse: lambda s, t: ((s - t) ** 2).mean(-1),
    feature.l1: lambda s, t: np.abs(s - t).mean(-1),
    feature.smooth_l1: lambda s, t: huber(s - t, 2.0).mean(-1),
    feature.smooth_l1_unit: lambda s, t: huber(s - t, 1.0).mean(-1),
    feature.cosine: one_minus_cosine,
    feature.balanced: lambda s, t: 0.9 * one_minus_cosine(s, t) + 0.1 * huber(s - t, 2.0).mean(-1),
}


@pytest.mark.parametrize("loss", FORMULAS, ids=lambda f: f.__name__)
def test_formula(loss):
    student, teacher = pair()
    found = loss(student, teacher)
    assert found.shape == (2, 3, 4) and found.dtype is torch.float32
    np.testing.assert_allclose(found, FORMULAS[loss](student.double().numpy(), teacher.double().numpy()), rtol=1e-5)


@pytest.mark.parametrize("loss", FORMULAS, ids=lambda f: f.__name__)
def test_zero_where_equal_and_nowhere_negative(loss):
    student, teacher = pair(1)
    assert (loss(student, teacher) >= 0).all()
    torch.testing.assert_close(loss(teacher, teacher), torch.zeros(2, 3, 4), atol=1e-6, rtol=0)


def test_cosine_sees_direction_alone():
    student, teacher = pair(2)
    torch.testing.assert_close(feature.cosine(5 * student, teacher), feature.cosine(student, teacher))
    torch.testing.assert_close(feature.cosine(-teacher, teacher), torch.full((2, 3, 4), 2.0))


@pytest.mark.parametrize("loss", FORMULAS, ids=lambda f: f.__name__)
def test_zero_vectors_have_finite_gradients(loss):
    student = torch.zeros(2, 5, requires_grad=True)
    loss(student, torch.zeros(2, 5)).sum().backward()
    assert torch.isfinite(student.grad).all()
