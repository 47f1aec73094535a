"""Losses of whole maps against their formulas, written out in numpy and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radioplat.losses.base.focal import Focal
from radioplat.losses.terms import spatial
from radioplat.losses.terms.feature import dampened_mse


def maps(seed: int = 0, shape: tuple[int, ...] = (2, 3, 4, 5)):
    generator = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(shape, generator=generator) for _ in range(2)]


def rows(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy().reshape(len(x), -1, x.shape[-1])


def test_gram():
    student, teacher = maps()
    expected = []
    for s, t in zip(rows(student), rows(teacher), strict=True):
        s, t = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (s, t))
        expected.append(np.mean((s @ s.T - t @ t.T) ** 2))
    np.testing.assert_allclose(spatial.gram(student, teacher), expected, rtol=1e-5)


def test_gram_knows_neither_a_rotation_nor_a_scale_nor_the_width():
    _, teacher = maps()
    rotation = torch.linalg.qr(torch.randn(7, 5, generator=torch.Generator().manual_seed(1)))[0]
    torch.testing.assert_close(spatial.gram(3 * teacher @ rotation.T, teacher), torch.zeros(2), atol=1e-6, rtol=0)


def test_gram_of_a_large_map_takes_evenly_spaced_positions(monkeypatch):
    student, teacher = maps(shape=(1, 6, 6, 5))
    monkeypatch.setattr(spatial, "GRAM_POSITIONS", 8)
    places = [0, 5, 10, 15, 20, 25, 30, 35]
    expected = spatial.gram(*(x.flatten(1, 2)[:, places][:, None] for x in (student, teacher)))
    torch.testing.assert_close(spatial.gram(student, teacher), expected)


def test_channel_kl():
    student, teacher = maps(3)
    expected = []
    for s, t in zip(rows(student), rows(teacher), strict=True):
        s, t = (np.exp(x / 4) / np.exp(x / 4).sum(0) for x in (s, t))
        expected.append(16 * np.mean(np.sum(t * np.log(t / s), axis=0)))
    np.testing.assert_allclose(spatial.channel_kl(student, teacher), expected, rtol=1e-4)


def test_channel_kl_looks_at_where_not_at_how_much():
    _, teacher = maps()
    torch.testing.assert_close(spatial.channel_kl(teacher + 5, teacher), torch.zeros(2), atol=1e-5, rtol=0)


def test_attention():
    student, teacher = maps(4)
    expected = []
    for s, t in zip(rows(student), rows(teacher), strict=True):
        s, t = (np.square(x).sum(1) for x in (s, t))
        expected.append(np.sum((s / np.linalg.norm(s) - t / np.linalg.norm(t)) ** 2))
    np.testing.assert_allclose(spatial.attention(student, teacher), expected, rtol=1e-5)
    apart = torch.zeros(2, 1, 1, 2, 3)
    apart[0, :, :, 0], apart[1, :, :, 1] = 1, 1
    torch.testing.assert_close(spatial.attention(*apart), torch.tensor([2.0]))


@given(st.floats(-50, 50))
def test_dampened_mse(difference):
    x = torch.tensor([difference], requires_grad=True)
    value = dampened_mse(x, torch.zeros(1))
    value.backward()
    size = abs(difference)
    expected = size**2 / 2 if size < 1 else 2 * size**0.5 - 1.5
    slope = difference if size < 1 else np.sign(difference) / size**0.5
    assert value.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert x.grad.item() == pytest.approx(slope, rel=1e-4, abs=1e-6)


@given(st.floats(0, 1), st.floats(0, 3), st.sampled_from([0.0, 1.0, 2.5, 4.0]), st.integers(0, 9))
def test_focal_weights_have_mean_one_over_what_is_valid(weight, gamma, most, seed):
    _, teacher = maps(seed)
    valid = (torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(seed)) < 0.7).float()
    valid[:, 0, 0] = 1
    found = Focal(weight, gamma, most).weights(teacher, valid)
    torch.testing.assert_close((found * valid).sum((1, 2)), valid.sum((1, 2)), rtol=1e-4, atol=1e-4)
    assert (found >= 0).all()


def test_focal_weights_follow_the_teachers_saliency():
    teacher = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1).expand(1, 1, 3, 4)
    torch.testing.assert_close(Focal(1, 1, 0).weights(teacher), torch.tensor([[[0.5, 1.0, 1.5]]]))
    torch.testing.assert_close(Focal(0.5, 1, 0).weights(teacher), torch.tensor([[[0.75, 1.0, 1.25]]]))
    torch.testing.assert_close(Focal(1, 2, 0).weights(teacher), torch.tensor([[[3, 12, 27]]]) / 14)
    torch.testing.assert_close(Focal(1, 1, 1).weights(teacher), torch.tensor([[[0.5, 1.0, 1.0]]]) * 1.2)
    torch.testing.assert_close(Focal(0, 1, 4).weights(teacher), torch.ones(1, 1, 3))
