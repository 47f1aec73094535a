"""Ridge regression from sums: scikit-learn's solution, the strength that is best on held-out rows, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from radioplat.models.ridge import STRENGTHS, Sums, fit_ridge


def rows(count: int, seed: int = 0, inputs: int = 12, targets: int = 5, noise: float = 0.5):
    """Inputs with a mean and unequal variances, and noisy linear targets of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=generator) * torch.logspace(-1, 1, inputs) + 3
    true = torch.randn(inputs, targets, generator=torch.Generator().manual_seed(99))
    return x, x @ true + noise * torch.randn(count, targets, generator=generator) - 7


def sums(x: torch.Tensor, y: torch.Tensor) -> Sums:
    result = Sums.empty(x.shape[1], y.shape[1])
    result.add(x, y)
    return result


@pytest.mark.parametrize(("count", "noise"), [(400, 0.5), (400, 50.0), (9, 0.5)])
def test_it_is_scikit_learns_ridge_with_the_strength_that_is_best_on_held_out_rows(count, noise):
    x, y = rows(count, 1, noise=noise)
    other_x, other_y = rows(count, 2, noise=noise)
    fit = fit_ridge(sums(x, y), sums(other_x, other_y))
    assert fit is not None

    def reference(x: torch.Tensor, y: torch.Tensor, strength: float) -> Ridge:
        # scikit-learn's penalty is on the sum over rows, ours on their mean, in units of the inputs' mean variance.
        penalty = strength * float(x.double().var(0, unbiased=False).mean()) * len(x)
        return Ridge(alpha=penalty).fit(x.double().numpy(), y.double().numpy())

    errors = [
        np.square(reference(x, y, s).predict(other_x.double().numpy()) - other_y.double().numpy()).sum()
        for s in STRENGTHS
    ]
    assert fit.strength == STRENGTHS[int(np.argmin(errors))]
    spread = float((other_y.double() - other_y.double().mean(0)).square().sum())
    assert fit.r2 == pytest.approx(1 - min(errors) / spread, abs=1e-8)
    whole = reference(torch.cat([x, other_x]), torch.cat([y, other_y]), fit.strength)
    np.testing.assert_allclose(fit.weight.numpy(), whole.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(fit.bias.numpy(), whole.intercept_, rtol=1e-6, atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 59), max_size=5), st.permutations(range(60)))
def test_any_split_of_the_rows_gives_the_same_fit(cuts, order):
    x, y = rows(60)
    fitted, held_out = sums(x[:40], y[:40]), sums(x[40:], y[40:])
    expected = fit_ridge(fitted, held_out)
    edges = [0, *sorted(set(cuts)), 60]
    parts = [Sums.empty(12, 5), Sums.empty(12, 5)]
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        part = torch.tensor(order[begin:end])
        for number, taken in enumerate((part[part < 40], part[part >= 40])):
            parts[number] += sums(x[taken], y[taken])
    found = fit_ridge(*parts)
    assert found is not None and expected is not None and found.strength == expected.strength
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.bias, expected.bias, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_learned_is_not_fitted():
    x, y = rows(50)
    again_x, again_y = rows(50, 3)
    same = torch.ones_like(y)
    assert fit_ridge(sums(x, same), sums(again_x, same)) is None
    assert fit_ridge(sums(torch.ones_like(x), y), sums(torch.ones_like(x), again_y)) is None
    assert fit_ridge(sums(x, y), sums(again_x[:1], again_y[:1])) is None
    unrelated = torch.randn(50, 5, generator=torch.Generator().manual_seed(5)) * 1000
    opposite = fit_ridge(sums(x, unrelated), sums(x, -unrelated))
    assert opposite is None  # what was learned is wrong on the held-out rows at any strength
    broken = y.clone()
    broken[7, 2] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        fit_ridge(sums(x, broken), sums(again_x, again_y))


def test_inputs_that_repeat_each_other_are_no_obstacle():
    x, y = rows(100)
    fit = fit_ridge(sums(torch.cat([x, x], 1)[:80], y[:80]), sums(torch.cat([x, x], 1)[80:], y[80:]))
    assert fit is not None and fit.r2 > 0.9
    torch.testing.assert_close(fit.weight[:, :12], fit.weight[:, 12:], rtol=1e-4, atol=1e-6)


def test_what_is_nearly_the_input_is_shrunk_towards_it():
    """Few rows of many dimensions: towards zero the fit would forget most of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 80, generator=generator)
    y = x + 0.3 * torch.randn(120, 80, generator=generator)
    fit = fit_ridge(sums(x[:60], y[:60]), sums(x[60:], y[60:]))
    assert fit is not None and fit.r2 > 0.85
    torch.testing.assert_close(fit.weight, torch.eye(80, dtype=torch.float64), atol=0.1, rtol=0)
    apart = fit_ridge(sums(x[:60], y[:60].flip(1)), sums(x[60:], y[60:].flip(1)))
    assert apart is not None and apart.r2 < 0.6  # the same dimensions in another order: towards zero
