"""Every loss that a spec can ask for and ``check`` lets through has a function."""

from __future__ import annotations

import torch

from radioplat.losses import feature, logits
from radioplat.losses.registry import LOSSES
from radioplat.spec.distill import LossType, SummaryLoss


def test_every_name_of_the_spec():
    assert set(LossType) <= set(LOSSES)
    assert {SummaryLoss.CE, SummaryLoss.cosine} <= set(LOSSES)


def test_names_mean_what_the_spec_says():
    expected = {
        "KL": logits.kl_tao,
        "CE": logits.ce_tao,
        "L1": feature.l1,
        "L2": feature.mse,
        "MSE": feature.mse,
        "FD": feature.smooth_l1,
        "CS": feature.cosine,
        "BALANCED": feature.balanced,
    }
    assert {t.value: LOSSES[t] for t in LossType} == expected
    assert LOSSES[SummaryLoss.CE] is logits.ce_tao and LOSSES[SummaryLoss.cosine] is feature.cosine


def test_one_value_a_position():
    for loss in LOSSES.values():
        assert loss(torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)).shape == (2, 3, 4)
