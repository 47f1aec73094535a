from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.linear_probe import choose, fit, held_out_rows, linear_probe
from radioplat.spec.schema.evaluate import LinearProbeConfig


def digits():
    data = load_digits()
    return torch.from_numpy(data.data).float(), torch.from_numpy(data.target)


@pytest.mark.parametrize("decay", [1e-2, 1.0])
def test_is_the_optimum_that_scikit_learn_finds(decay):
    x, y = digits()
    x, y = x[:300].double(), y[:300]
    scale = (x - x.mean(0)).square().mean(0).sqrt()
    standard = ((x - x.mean(0)) / torch.where(scale > 0, scale, 1.0)).numpy()
    # scikit-learn's objective is C * (sum of losses) + |W|^2 / 2.
    theirs = LogisticRegression(C=1 / (decay * len(x)), tol=1e-10, max_iter=5000).fit(standard, y.numpy())
    ours = fit(x, F.one_hot(y).double(), decay, max_iter=1000)
    expected = torch.from_numpy(theirs.predict_log_proba(standard))
    assert (ours.logits(x).log_softmax(1) - expected).abs().max() < 1e-3


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31 - 1), st.floats(0.01, 100))
def test_scale_and_shift_of_a_feature_do_not_matter(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    targets = F.one_hot(torch.randint(0, 3, (40,), generator=generator), 3).double()
    moved = x * torch.tensor([scale, 1, 1, 1, 1.0]) + torch.randn(5, generator=generator).double()
    one, other = fit(x, targets, 0.1), fit(moved, targets, 0.1)
    assert torch.allclose(one.logits(x).softmax(1), other.logits(moved).softmax(1), atol=1e-4)


def test_strong_decay_leaves_the_shares_of_the_classes():
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0.7, 0.3]]).expand(100, 2)
    probabilities = fit(x, targets, 1e6).logits(x).softmax(1)
    assert torch.allclose(probabilities, targets, atol=1e-3)


def test_the_start_does_not_matter():
    x, y = digits()
    x, targets = x[:200].double(), F.one_hot(y[:200]).double()
    other = fit(x, targets, 10.0)
    assert torch.allclose(fit(x, targets, 0.1).logits(x), fit(x, targets, 0.1, start=other).logits(x), atol=1e-3)


def test_real_images_are_told_apart_and_shuffled_labels_are_not():
    x, y = digits()
    config = LinearProbeConfig(enable=True)
    found = linear_probe(x[:1200], y[:1200], x[1200:], y[1200:], config)
    assert found.top1 > 0.88 and (found.count, found.bank, found.classes) == (597, 1200, 10)
    shuffled = y[:1200][torch.randperm(1200, generator=torch.Generator().manual_seed(0))]
    assert linear_probe(x[:1200], shuffled, x[1200:], y[1200:], config).top1 < 0.25


def test_weight_decay_is_chosen_without_the_queries():
    """Labels that are noise: the strongest decay does best on rows held out, whatever the queries say."""
    generator = torch.Generator().manual_seed(3)
    x, noise = torch.randn(300, 60, generator=generator), torch.rand(300, generator=generator)
    y = (x[:, 0] + 6 * (noise - 0.5) > 0).long()
    config = LinearProbeConfig(weight_decays=[1e-6, 1e-1])
    found = linear_probe(x, y, x, y, config)  # the queries are the training rows: they would choose the weakest
    assert found.weight_decay == 1e-1
    weak, strong = (linear_probe(x, y, x, y, LinearProbeConfig(weight_decays=[d])).top1 for d in (1e-6, 1e-1))
    assert weak > strong == found.top1
    held = held_out_rows(y, 0.2, 0)
    chosen = choose(x, F.one_hot(y).float(), held, [1e-6, 1e-1])
    # As many right: the likelier answers settle it.
    assert chosen.scores[1e-1] >= chosen.scores[1e-6] and chosen.weight_decay == 1e-1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_share_of_each_class_is_held_out_and_never_all(labels, share, seed):
    labels = torch.tensor(labels)
    held = held_out_rows(labels, share, seed)
    for label in labels.unique():
        mine = held[labels == label]
        assert int(mine.sum()) == min(int(share * len(mine)), len(mine) - 1)
    assert torch.equal(held, held_out_rows(labels, share, seed))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda a, b: a.fill_(-1), "dataset.train_dataset"),
        (lambda a, b: b.fill_(-1), "dataset.val_dataset"),
        (lambda a, b: a.fill_(1), "dataset.train_dataset"),
        (lambda a, b: a.copy_(torch.arange(10)), "evaluate.linear_probe.held_out"),
    ],
)
def test_what_cannot_be_judged_is_told(change, where):
    x, y = digits()
    bank, queries = y[:10].clone(), y[10:20].clone()
    change(bank, queries)
    with pytest.raises(RadioplatError) as error:
        linear_probe(x[:10], bank, x[10:20], queries, LinearProbeConfig())
    assert error.value.problems[0].where == where
