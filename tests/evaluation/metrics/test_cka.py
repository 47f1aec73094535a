from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from radioplat.evaluation.metrics.cka import RowSample, linear_cka

seeds = st.integers(0, 2**31 - 1)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def song(a, b):
    """HSIC_1 as theorem 5 of Song et al. 2012 writes it."""
    n = len(a)
    k, m = a @ a.T, b @ b.T
    k.fill_diagonal_(0)
    m.fill_diagonal_(0)
    one = torch.ones(n, dtype=torch.float64)
    first = (k @ m).trace()
    second = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    third = 2 / (n - 2) * (one @ k @ m @ one)
    return (first + second - third) / (n * (n - 3))


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(5, 30), st.integers(1, 40), st.integers(1, 8))
def test_is_the_estimator_of_the_paper(seed, n, wide, narrow):
    a, b = normal(seed, n, wide) + 3, normal(seed + 1, n, narrow)
    expected = song(a, b) / (song(a, a) * song(b, b)).sqrt()
    assert linear_cka(a, b) == pytest.approx(float(expected), abs=1e-7)


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(0.01, 100))
def test_rotation_scale_and_shift_do_not_matter(seed, scale):
    a, b = normal(seed, 20, 6), normal(seed + 1, 20, 5)
    rotation, _ = torch.linalg.qr(normal(seed + 2, 6, 6))
    moved = scale * a @ rotation + normal(seed + 3, 6)
    assert linear_cka(moved, b) == pytest.approx(linear_cka(a, b), abs=1e-7)
    assert linear_cka(moved, a) == pytest.approx(1)


def test_unrelated_wide_features_score_about_nothing():
    # 64 rows of 4096 features: the biased estimator says 0.98 here.
    scores = torch.tensor([linear_cka(normal(2 * i, 64, 4096), normal(2 * i + 1, 64, 4096)) for i in range(10)])
    assert scores.abs().max() < 0.1 and abs(scores.mean()) < 0.03


def test_real_images_and_part_of_their_pixels():
    pixels = torch.from_numpy(load_digits().data)[:400]
    upper, lower = pixels[:, :32], pixels[:, 32:]
    assert linear_cka(pixels, pixels) == pytest.approx(1)
    assert linear_cka(pixels, upper) > linear_cka(upper, lower) > 0.05
    shuffled = lower[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    assert abs(linear_cka(upper, shuffled)) < 0.02


def test_constant_features_and_too_few_rows():
    assert linear_cka(torch.full((10, 3), 7.3), normal(0, 10, 3)) == 0.0
    with pytest.raises(ValueError, match="at least 4"):
        linear_cka(normal(0, 3, 2), normal(0, 3, 2))


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 60), st.integers(1, 40), st.integers(1, 5), st.integers(1, 9))
def test_a_sample_is_bounded_spread_and_keeps_pairs_together(rows, images, batch, side):
    sample = RowSample(rows, images)
    features = torch.arange(images * side * side, dtype=torch.float32).reshape(images, side, side, 1)
    for part in features.split(batch):
        sample.add(part, 2 * part)
    kept = torch.cat([a for a, _ in sample._kept]).flatten()
    assert 0 < len(kept) <= rows and len(kept.unique()) == len(kept)
    assert torch.equal(torch.cat([b for _, b in sample._kept]).flatten(), 2 * kept)
    seen = (kept // (side * side)).unique()
    assert len(seen) == min(rows, images)
    assert sample.cka() is None if len(kept) < 4 else sample.cka() == pytest.approx(1)


def test_few_rows_of_a_large_set_are_those_of_a_whole_set():
    pixels = torch.from_numpy(load_digits().data).float()
    sample = RowSample(500, len(pixels))
    sample.add(pixels[:, :32], pixels[:, 32:])
    assert sample.cka() == pytest.approx(linear_cka(pixels[:, :32], pixels[:, 32:]), abs=0.05)
