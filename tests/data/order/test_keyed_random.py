"""Draws follow from their key, however a span is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.order.keyed_random import MOST, uniforms


@given(st.integers(0, 2**50), st.integers(1, 40), st.integers(0, 40), st.integers(1, MOST))
@settings(max_examples=50, deadline=None)
def test_a_span_can_be_cut_and_reordered(start, length, cut, count):
    span = np.arange(start, start + length)
    whole = uniforms(3, "crop", span, count)
    parts = [uniforms(3, "crop", part, count) for part in (span[:cut], span[cut:])]
    assert whole.shape == (length, count) and (np.concatenate(parts) == whole).all()
    assert (uniforms(3, "crop", span[::-1], count) == whole[::-1]).all()


def test_fewer_draws_are_the_first_of_more():
    span = np.arange(7)
    assert (uniforms(0, "a", span, 3) == uniforms(0, "a", span, 40)[:, :3]).all()
    with pytest.raises(ValueError):
        uniforms(0, "a", span, MOST + 1)


def test_keys_do_not_collide():
    span = np.arange(50)
    draws = [uniforms(seed, purpose, span, MOST).ravel() for seed in (0, 1) for purpose in ("crop", "flip")]
    assert len(np.unique(np.concatenate(draws))) == 4 * 50 * MOST


def test_draws_are_uniform_and_do_not_go_together():
    draws = uniforms(5, "flip", np.arange(20_000), 4)
    assert 0 <= draws.min() and draws.max() < 1
    assert np.abs(np.histogram(draws, 20)[0] / draws.size - 0.05).max() < 0.003
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.03
    assert np.abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.03


def test_the_values_are_for_ever():
    # A run that is resumed after an update must draw what it drew: change these only with a new checkpoint version.
    assert uniforms(42, "crop", np.array([10**9]), 3)[0].tolist() == [
        0.5033732712221061,
        0.6707079762307295,
        0.6908526441883674,
    ]
