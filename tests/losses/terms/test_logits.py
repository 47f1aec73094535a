"""Losses between class scores against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, Categorical, kl_divergence

from radioplat.losses.terms.logits import ce_tao, kl_sigmoid, kl_tao

STUDENT, TEACHER = torch.randn(2, 6, 11, generator=torch.Generator().manual_seed(0)).mul(4).unbind()


@pytest.mark.filterwarnings("ignore:reduction")
def test_kl_is_a_cth_of_the_divergence():
    expected = kl_divergence(Categorical(logits=TEACHER), Categorical(logits=STUDENT)) / 11
    torch.testing.assert_close(kl_tao(STUDENT, TEACHER), expected)
    # Its mean over samples is F.kl_div with reduction "mean", as TAO calls it.
    tao = F.kl_div(STUDENT.log_softmax(-1), TEACHER.softmax(-1), reduction="mean")
    torch.testing.assert_close(kl_tao(STUDENT, TEACHER).mean(), tao)


def test_kl_is_zero_where_scores_differ_by_a_constant():
    torch.testing.assert_close(kl_tao(TEACHER + 3, TEACHER), torch.zeros(6), atol=1e-6, rtol=0)


def test_ce_is_binary_against_the_softmax():
    target = TEACHER.softmax(-1)
    p = STUDENT.double().sigmoid()
    expected = -(target * p.log() + (1 - target) * (1 - p).log()).mean(-1)
    torch.testing.assert_close(ce_tao(STUDENT, TEACHER), expected.float())
    torch.testing.assert_close(
        ce_tao(STUDENT, TEACHER).mean(), F.binary_cross_entropy_with_logits(STUDENT, target, reduction="mean")
    )


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_kl_of_classes_that_exclude_nothing_is_bernoullis(temperature):
    theirs, mine = (Bernoulli(logits=scores.double() / temperature) for scores in (TEACHER, STUDENT))
    expected = temperature**2 * kl_divergence(theirs, mine).mean(-1)
    torch.testing.assert_close(kl_sigmoid(STUDENT, TEACHER, temperature), expected.float())
    assert (kl_sigmoid(TEACHER + 3, TEACHER) > 0.1).all()


def test_extreme_scores_stay_finite():
    student = torch.tensor([[1e4, -1e4]], requires_grad=True)
    for loss in (kl_tao, ce_tao, kl_sigmoid):
        value = loss(student, torch.tensor([[-1e4, 1e4]]))
        value.sum().backward()
        assert torch.isfinite(value).all() and torch.isfinite(student.grad).all()
