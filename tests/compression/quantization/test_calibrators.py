"""Each calibrator against a closed form or another library."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.compression.quantization.calibrators import (
    entropy_amax,
    levels,
    mse_amax,
    mse_weight_amax,
    percentile_amax,
)
from radioplat.compression.quantization.histogram import BINS, Magnitudes
from radioplat.models.quantized.fake_quantize import NumberFormat, fake_quantize


def magnitudes(*parts: torch.Tensor) -> Magnitudes:
    result = Magnitudes()
    for part in parts:
        result.update_amax(part)
    for part in parts:
        result.update_counts(part)
    return result


values = st.lists(st.floats(-1000, 1000, width=32, allow_subnormal=False), min_size=2, max_size=200)


@given(values, st.integers(200, 400).map(lambda quarters: quarters / 4))
@settings(deadline=None, max_examples=60)
def test_at_most_the_rest_lies_beyond_a_percentile(numbers, percentile):
    x = torch.tensor(numbers)
    if not x.abs().max() > 1e-3:
        return
    result = magnitudes(x)
    amax = percentile_amax(result, percentile)
    assert float((x.abs() > amax * (1 + 1e-5)).float().mean()) <= (100 - percentile) / 100 + 1e-6
    exact = np.percentile(x.abs().double().numpy(), percentile, method="inverted_cdf")
    assert exact - 1e-4 * result.amax <= amax <= exact + 1.001 * result.width + 1e-4 * result.amax


@given(values, st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_how_the_values_are_cut_into_batches_changes_nothing(numbers, parts):
    x = torch.tensor(numbers)
    whole, cut = magnitudes(x), magnitudes(*[part for part in x.chunk(parts)])
    assert whole.amax == cut.amax and torch.equal(whole.counts, cut.counts)
    assert whole.amax == 0 or int(whole.counts.sum()) == len(numbers)


def test_infinite_values_are_noticed():
    for bad in (float("nan"), float("inf")):
        result = Magnitudes()
        result.update_amax(torch.tensor([1.0, bad]))
        assert not result.finite


def test_entropy_by_the_written_out_procedure():
    """Migacz' pseudo-code, loop by loop, for a few candidates."""
    torch.manual_seed(0)
    result = magnitudes(torch.randn(20000) * 3)
    counts = result.counts.clone().numpy()
    counts[0] = counts[1]

    def divergence(n: int) -> float:
        p = counts[:n].copy()
        p[n - 1] += counts[n:].sum()
        q = np.zeros(n)
        for level in range(128):
            inside = [i for i in range(n) if i * 128 // n == level]
            filled = [i for i in inside if counts[i] > 0]
            for i in filled:
                q[i] = counts[inside].sum() / len(filled)
        p, q = p / p.sum(), q / q.sum()
        if ((p > 0) & (q == 0)).any():
            return np.inf
        both = p > 0
        return float((p[both] * np.log(p[both] / q[both])).sum())

    chosen = round(entropy_amax(result, NumberFormat.int8) / result.width)
    others = [n for n in (chosen - 400, chosen - 80, chosen - 8, chosen + 8, chosen + 80, BINS) if 128 <= n <= BINS]
    assert all(divergence(chosen) <= divergence(n) + 1e-12 for n in others)


def test_entropy_clips_far_outliers_and_keeps_a_flat_range():
    torch.manual_seed(0)
    x = torch.cat([torch.randn(100_000), torch.tensor([60.0])])
    assert 2.5 < entropy_amax(magnitudes(x), NumberFormat.int8) < 10
    flat = torch.rand(200_000)
    assert entropy_amax(magnitudes(flat), NumberFormat.int8) > 0.9


@pytest.mark.parametrize("format", list(NumberFormat))
def test_levels_are_those_of_the_format(format):
    result = levels(BINS, format)
    assert (np.diff(result) >= 0).all() and result[0] == 0
    # Of 8-bit floats the positive ones: 126, and 0; the middles of 2048 equal bins meet the coarser of them.
    assert int(result[-1]) + 1 <= (127 if format is NumberFormat.fp8 else 1 << (format.bits - 1))


@pytest.mark.parametrize(("format", "share"), [(NumberFormat.int4, 0.62), (NumberFormat.int8, 0.95)])
def test_the_least_squared_error_is_that_of_the_operator(format, share):
    torch.manual_seed(0)
    x = torch.randn(50_000)
    result = magnitudes(x)

    def error(amax: float) -> float:
        return float((x - fake_quantize(x, torch.tensor([amax / format.highest]), -1, format)).square().mean())

    amax = mse_amax(result, format)
    assert error(amax) <= 1.01 * min(error(result.amax * k / 50) for k in range(10, 51)) + 1e-7
    assert amax < result.amax * (share + 0.2)  # of a bell-shaped tensor: the more, the fewer the levels


def test_weights_by_channel_lose_no_more_than_by_their_largest():
    torch.manual_seed(0)
    weight = torch.randn(6, 40) * torch.tensor([1e-3, 0.1, 1, 1, 10, 0]).reshape(-1, 1)
    amax = mse_weight_amax(weight, NumberFormat.int4)
    assert amax.shape == (6,) and amax[5] == 0

    def error(result: torch.Tensor) -> torch.Tensor:
        return (weight - fake_quantize(weight, result.clamp(min=1e-9) / 7, 0, "int4")).square().sum(1)

    best, plain = error(amax), error(weight.abs().amax(1))
    assert (best <= plain + 1e-12).all() and float((best[:5] / plain[:5]).mean()) < 0.93
