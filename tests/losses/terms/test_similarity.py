"""Similarity losses against the formula written out with scipy; what has no weight is no target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import entropy

from radioplat.losses.terms.similarity import MOST_POSITIONS, TEMPERATURE, of_images, of_positions


def written_out(student: np.ndarray, teacher: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """KL of each row of ``student`` and ``teacher`` over cosines to ``targets``."""

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    ours, theirs = (np.exp(log_softmax(unit(x) @ unit(targets).T / TEMPERATURE, axis=1)) for x in (student, teacher))
    return np.array([entropy(p, q) for p, q in zip(theirs, ours, strict=True)])


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    return rng.normal(size=(5, 2, 3, 8)), rng.normal(size=(5, 2, 3, 8))


def test_images(pairs):
    student, teacher = (torch.tensor(x[:, 0, 0]) for x in pairs)
    weight = torch.tensor([1.0, 1, 0, 0.5, 1])
    found = of_images(student, teacher, weight)
    counted = [0, 1, 3, 4]
    expected = written_out(student.numpy(), teacher.numpy(), teacher.numpy()[counted])
    np.testing.assert_allclose(found[counted], expected[counted], rtol=1e-6)


def test_positions(pairs):
    student, teacher = map(torch.tensor, pairs)
    valid = torch.ones(5, 2, 3, dtype=torch.float64)
    valid[1, 0, 2], valid[2] = 0, 0
    found = of_positions(student, teacher, valid)
    for image, (ours, theirs, counted) in enumerate(zip(*pairs, valid.numpy() > 0, strict=True)):
        if image == 2:
            assert found[image] == 0
            continue
        expected = written_out(ours[counted], theirs[counted], theirs[counted]).mean()
        assert found[image] == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(of_positions(student, teacher)[0], found[0])


def test_a_large_map_is_compared_to_every_third_row_and_column_of_it():
    side = 2 * int(MOST_POSITIONS**0.5) + 2  # every second one would be too many
    student, teacher = np.random.default_rng(1).normal(size=(2, 1, side, side, 4))
    targets = teacher[0, ::3, ::3].reshape(-1, 4)
    expected = written_out(student.reshape(-1, 4), teacher.reshape(-1, 4), targets).mean()
    found = of_positions(torch.tensor(student), torch.tensor(teacher))
    assert len(targets) <= MOST_POSITIONS
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_equal_features_lose_nothing_and_gradients_are_finite(pairs):
    teacher = torch.tensor(pairs[1])
    assert of_positions(teacher, teacher).abs().max() < 1e-12
    zeros = torch.zeros(5, 8, requires_grad=True)
    of_images(zeros, torch.zeros(5, 8), torch.zeros(5)).sum().backward()
    assert torch.isfinite(zeros.grad).all()
