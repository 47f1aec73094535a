"""Angles, dispersions, and the tangent plane."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from radioplat.losses.base.running_statistics import Running
from radioplat.losses.terms.angle import Angle, angle_between
from radioplat.losses.terms.feature import cosine
from radioplat.losses.terms.tangent_sphere import TangentSphere, log_map

D = 8


def summaries(count: int, seed: int = 0) -> torch.Tensor:
    """Teacher's: in a cone around an axis."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * F.one_hot(torch.tensor(2), D) + 1.5 * torch.randn(count, D, generator=generator)


def step(loss: Running, *micro_batches: torch.Tensor, weight: torch.Tensor | None = None) -> None:
    """One optimizer step on one rank."""
    for batch in micro_batches:
        loss(torch.zeros_like(batch), batch, torch.ones(len(batch)) if weight is None else weight)
    loss.update(loss.sums())
    loss.clear()


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@given(st.floats(0.01, math.pi - 0.01), st.floats(0.1, 100))
def test_the_angle_between(angle, length):
    x = torch.tensor([1.0, 0, 0])
    y = length * torch.tensor([math.cos(angle), math.sin(angle), 0])
    assert angle_between(x, y).item() == pytest.approx(angle, abs=2e-3)
    # the log map's tangent vector is as long as the angle and stands on the base
    tangent = log_map(y, x)
    assert tangent.norm().item() == pytest.approx(angle, rel=1e-2, abs=2e-3) and abs(tangent[0]) < 1e-4


def test_the_clamp_keeps_gradients_finite():
    for other in (1.0, -1.0):
        x = torch.tensor([other, 0.0], requires_grad=True)
        angle_between(x, torch.tensor([1.0, 0.0])).square().backward()
        assert torch.isfinite(x.grad).all()
    assert angle_between(torch.ones(3), torch.ones(3)).item() == pytest.approx(math.acos(1 - 1e-6), rel=1e-2)


def test_dispersion_is_the_mean_square_angle_to_the_mean_direction():
    loss, first, second = Angle(D), summaries(64, 1), summaries(32, 2)
    step(loss, first)
    assert loss.dispersion == 1, "not known yet: angles were taken to nothing"
    step(loss, second)
    mean = unit(unit(first.double().numpy()).mean(0))
    expected = np.mean(np.arccos(unit(second.double().numpy()) @ mean) ** 2)
    np.testing.assert_allclose(loss.dispersion, expected, rtol=1e-6)
    student, teacher = summaries(5, 3), summaries(5, 4)
    angles = np.arccos((unit(student.double().numpy()) * unit(teacher.double().numpy())).sum(-1))
    values, _ = loss(student, teacher, torch.ones(5))
    np.testing.assert_allclose(values, angles**2 / expected, rtol=1e-4)


def test_dispersion_of_uniform_directions_in_many_dimensions():
    """There nearly all angles are right ones: Disp tends to (pi / 2)^2."""
    loss, generator = Angle(512), torch.Generator().manual_seed(0)
    for _ in range(3):
        step(loss, torch.randn(512, 512, generator=generator))
    assert loss.dispersion.item() == pytest.approx((math.pi / 2) ** 2, rel=0.05)


@pytest.mark.parametrize("make", [lambda: Angle(D), lambda: TangentSphere(D, 48), lambda: TangentSphere(D, 80)])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_statistics_are_those_of_the_step_however_it_is_cut(make, size):
    whole, cut, teacher = make(), make(), [summaries(16, seed) for seed in range(4)]
    weight = torch.ones(16)
    weight[3] = weight[10] = 0
    for batch in teacher:
        step(whole, batch, weight=weight)
        dead = batch.clone()
        dead[weight == 0] = float("nan")
        for start in range(0, 16, size):
            rows = slice(start, start + size)
            cut(torch.zeros(size, D), dead[rows], weight[rows])
        cut.counting = False
        cut(torch.zeros(4, D), torch.randn(4, D), torch.ones(4))  # padding
        cut.counting = True
        cut.update(cut.sums())
        cut.clear()
    for (name, expected), (_, found) in zip(whole.named_buffers(), cut.named_buffers(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, msg=name)
    assert any(value.any() for value in whole.buffers())


def test_within_a_step_statistics_rest():
    loss = Angle(D)
    step(loss, summaries(16))
    before = [value.clone() for value in loss.buffers()]
    loss(summaries(4), summaries(4), torch.ones(4))
    loss.eval()
    loss(summaries(4), summaries(4), torch.ones(4))
    assert all(map(torch.equal, before, loss.buffers()))
    assert loss.sums()["samples"] == 4, "in evaluation it counts nothing"


def test_a_cast_of_the_module_leaves_them_exact():
    loss = torch.nn.Sequential(Angle(D))
    step(loss[0], summaries(16))
    before = [value.clone() for value in loss.buffers()]
    loss.bfloat16()
    assert all(map(torch.equal, before, loss.buffers())) and next(loss.buffers()).dtype is torch.float64


def test_tangent_sphere_begins_as_the_cosine_loss_and_then_measures_in_the_tangent_plane():
    loss = TangentSphere(D, 96)
    first, second = [summaries(24, seed) for seed in (1, 2)], [summaries(24, seed) for seed in (3, 4)]
    student, teacher = summaries(5, 8), summaries(5, 9)
    for batch in (*first, *second):
        assert not loss.ready
        torch.testing.assert_close(loss(student, teacher, torch.zeros(5) + 1e-9)[0], cosine(student, teacher))
        loss.clear()
        step(loss, batch)
    assert loss.ready
    after = [value.clone() for value in loss.buffers()]
    step(loss, summaries(24, 7))
    assert all(map(torch.equal, after, loss.buffers())), "frozen"

    def log(x: torch.Tensor) -> np.ndarray:
        x = unit(x.double().numpy())
        angle = np.arccos(x @ mean)[:, None]
        return angle / np.sin(angle) * (x - (x @ mean)[:, None] * mean)

    mean = unit(unit(torch.cat(first).double().numpy()).mean(0))
    tangents = log(torch.cat(second))
    covariance = np.cov(tangents, rowvar=False, bias=True)
    # PHI-S in full: H U^T (v - m) / phi, with a Hadamard matrix of order 8
    values, vectors = np.linalg.eigh(covariance)
    phi = math.sqrt(values.mean())
    two = np.array([[1, 1], [1, -1]])
    transform = np.kron(two, np.kron(two, two)) / math.sqrt(D) @ vectors.T / phi
    np.testing.assert_allclose(np.diag(transform @ covariance @ transform.T), np.ones(D), rtol=1e-6)
    expected = np.mean(((log(student) - log(teacher)) @ transform.T) ** 2, axis=1)
    np.testing.assert_allclose(loss(student, teacher, torch.ones(5))[0], expected, rtol=1e-3)
    assert loss.spread.item() == pytest.approx(phi, rel=1e-6)


def test_tangent_sphere_has_finite_gradients_everywhere():
    loss = TangentSphere(D, 32)
    for seed in range(2):
        step(loss, summaries(16, seed))
    base = F.normalize(loss.direction, dim=0).float()
    for student in (base, -base, torch.zeros(D), summaries(1)[0]):
        student = student[None].clone().requires_grad_()
        values, _ = loss(student, base[None], torch.ones(1))
        values.sum().backward()
        assert torch.isfinite(values).all() and torch.isfinite(student.grad).all()
