"""RKD against the paper's sums, written out with loops."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.base.reduce import weighted_mean
from radioplat.losses.terms.relational import rkd_angle, rkd_distance


def batch(count: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, 4, generator=generator), 3 * torch.randn(count, 6, generator=generator)


def huber(d: float) -> float:
    return d * d / 2 if abs(d) <= 1 else abs(d) - 0.5


def by_pairs(student: np.ndarray, teacher: np.ndarray) -> float:
    pairs = list(permutations(range(len(student)), 2))
    potentials = []
    for x in (student, teacher):
        distances = np.array([np.linalg.norm(x[i] - x[j]) for i, j in pairs])
        potentials.append(distances / distances.mean())
    return float(np.mean([huber(a - b) for a, b in zip(*potentials, strict=True)]))


def by_triplets(student: np.ndarray, teacher: np.ndarray) -> float:
    def cosine(x, i, j, k):
        a, b = x[i] - x[j], x[k] - x[j]
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    triplets = permutations(range(len(student)), 3)
    return float(np.mean([huber(cosine(student, *t) - cosine(teacher, *t)) for t in triplets]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=3, max_size=7).filter(lambda alive: sum(alive) >= 3), st.integers(0, 99))
def test_the_papers_sums_over_the_living(alive, seed):
    student, teacher = batch(len(alive), seed)
    weight = torch.tensor(alive, dtype=torch.float32)
    living = [x[weight > 0].double().numpy() for x in (student, teacher)]
    for loss, written_out in ((rkd_distance, by_pairs), (rkd_angle, by_triplets)):
        assert weighted_mean(loss(student, teacher, weight), weight).item() == pytest.approx(
            written_out(*living), rel=1e-4, abs=1e-6
        )


@pytest.mark.parametrize("loss", [rkd_distance, rkd_angle])
def test_relations_know_no_position_scale_or_rotation(loss):
    _, teacher = batch(6)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))[0]
    found = loss(5 * teacher @ rotation + 7, teacher, torch.ones(6))
    torch.testing.assert_close(found, torch.zeros(6), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("loss", "enough"), [(rkd_distance, 2), (rkd_angle, 3)])
def test_too_few_to_relate(loss, enough):
    student, teacher = batch(4)
    student.requires_grad_()
    weight = (torch.arange(4) < enough - 1).float()
    loss(student, teacher, weight).sum().backward()
    assert torch.equal(loss(student, teacher, weight), torch.zeros(4)) and not student.grad.any()


@pytest.mark.parametrize("loss", [rkd_distance, rkd_angle])
def test_images_that_look_alike_have_finite_gradients(loss):
    student, teacher = torch.zeros(4, 3, requires_grad=True), torch.ones(4, 3)
    loss(student, teacher, torch.ones(4)).sum().backward()
    assert torch.isfinite(student.grad).all()
