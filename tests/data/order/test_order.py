"""Properties of the order: what the design promises, on random sources."""

from __future__ import annotations

import numpy as np
import pytest
from calls import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.array_source import ArraySource
from radioplat.data.order.mixture import Mixture, integer_shares
from radioplat.data.order.order import SampleOrder
from radioplat.errors import DataError, SpecError


def source(first: int, shards: list[int], weight=None) -> ArraySource:
    n = sum(shards)
    shard = np.repeat(np.arange(len(shards)), shards)
    return ArraySource(np.arange(first, first + n), shard, np.ones(n) if weight is None else np.asarray(weight, float))


shard_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_every_source_stays_within_one_of_its_share(factors):
    mixture = Mixture.of([float(f) for f in factors])
    share = np.array(mixture.shares) / mixture.period
    counts = np.cumsum(np.eye(len(factors))[mixture.pattern], axis=0)
    due = np.outer(np.arange(1, mixture.period + 1), share)
    assert np.abs(counts - due).max() < 1 + 1e-9
    assert tuple(counts[-1].astype(int)) == mixture.shares


def test_two_to_one_is_exact_in_every_three():
    assert sorted(Mixture.of([2.0, 1.0]).pattern) == [0, 0, 1]


@pytest.mark.parametrize(
    "factors, shares",
    [([2.0, 1.0], [2, 1]), ([0.3, 0.1], [3, 1]), ([5.0], [1]), ([0.5, 0.25, 0.25], [2, 1, 1])],
)
def test_simple_ratios_are_exact(factors, shares):
    assert integer_shares(factors) == shares


def test_irrational_ratios_fit_the_period_and_none_vanishes():
    shares = integer_shares([2**0.5, 1.0, 1e-9])
    assert sum(shares) <= 10_000 and min(shares) >= 1


def test_a_zero_share_is_refused_by_field():
    with pytest.raises(SpecError, match=r"tar_data_sources\[1\].scale_factor"):
        integer_shares([1.0, 0.0])


@given(shard_sizes, st.integers(0, 2**31), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_an_unweighted_pass_is_a_permutation(shards, seed, window):
    order = SampleOrder([source(0, shards)], [1.0], seed, window)
    n = sum(shards)
    for number in range(3):
        whole = order.slice(number * n, (number + 1) * n)
        assert sorted(whole.sample_id) == list(range(n)) and set(whole.view_number) == {number}


@given(shard_sizes, shard_sizes, st.integers(0, 99), st.integers(0, 200), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_slices_compose(a, b, seed, start, first, second):
    order = SampleOrder([source(0, a), source(1000, b)], [2.0, 1.0], seed, 2)
    whole = order.slice(start, start + first + second)
    parts = [order.slice(start, start + first), order.slice(start + first, start + first + second)]
    assert np.array_equal(whole.sample_id, np.concatenate([p.sample_id for p in parts]))
    assert np.array_equal(whole.source, np.concatenate([p.source for p in parts]))
    assert np.array_equal(whole.view_number, np.concatenate([p.view_number for p in parts]))


@given(shard_sizes, st.integers(1, 5), st.integers(0, 200), st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_views_of_an_image_follow_each_other(shards, repeats, start, count):
    """The order of single views, each as many times in a row, with numbers that count on from pass to pass."""
    sources = [source(0, shards), source(1000, [3, 4])]
    once, several = (SampleOrder(sources, [2.0, 1.0], 5, 2, k) for k in (1, repeats))
    whole = once.slice(0, -(-(start + count) // repeats))
    got = several.slice(start, start + count)
    expected = np.repeat(whole.sample_id, repeats)[start : start + count]
    views = (whole.view_number[:, None] * repeats + np.arange(repeats)).ravel()[start : start + count]
    assert np.array_equal(got.sample_id, expected) and np.array_equal(got.view_number, views)
    assert np.array_equal(got.position, np.arange(start, start + count))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=30), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_a_weight_thins_never_repeats_and_keeps_one_pass_length(rows, seed):
    weight = np.array([w / 9 for _, w in rows]) + 0.0
    if weight.max() == 0:
        weight[0] = 1.0
    shard = np.sort(np.array([s for s, _ in rows]))
    order = SampleOrder([ArraySource(np.arange(len(rows)), shard, weight)], [1.0], seed, 2)
    n = order.pass_length(0)
    assert n == int(weight.sum() / weight.max() + 1e-9)
    for number in range(4):
        ids = order.slice(number * n, (number + 1) * n).sample_id
        assert len(set(ids)) == len(ids)
        assert (weight[ids] > 0).all()


def test_rows_are_drawn_in_proportion_to_their_weight():
    weight = np.array([1.0, 0.5, 0.25, 0.25, 0.0, 1.0])
    order = SampleOrder([source(0, [3, 3], weight)], [1.0], 7)
    passes = 4000
    seen = np.bincount(order.slice(0, passes * order.pass_length(0)).sample_id, minlength=6) / passes
    assert np.allclose(seen, weight * order.pass_length(0) / weight.sum(), atol=0.03)


def test_skipping_far_costs_what_the_beginning_costs():
    order = SampleOrder([source(0, [50] * 40), source(10_000, [30] * 10)], [2.0, 1.0], 3)
    assert len(order.slice(10**9, 10**9 + 256).sample_id) == 256
    near, far = (count_calls(order.slice, start, start + 256) for start in (10**6, 10**12))
    assert far < 2 * near


def test_seeds_and_passes_differ():
    one, two = (SampleOrder([source(0, [20, 20])], [1.0], seed) for seed in (1, 2))
    assert not np.array_equal(one.slice(0, 40).sample_id, two.slice(0, 40).sample_id)
    assert not np.array_equal(one.slice(0, 40).sample_id, one.slice(40, 80).sample_id)


def test_a_source_without_samples_is_named():
    with pytest.raises(DataError, match="source 1 has no sample left"):
        SampleOrder([source(0, [3]), source(3, [2], np.zeros(2))], [1.0, 1.0], 0)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 40), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_worker_count_changes_nothing(workers, per_worker, start, seed):
    order = SampleOrder([source(0, [9, 4, 7]), source(100, [5, 5])], [2.0, 1.0], seed, 2)
    batch = workers * per_worker
    whole = order.slice(start * batch, (start + 3) * batch).sample_id
    dealt = [
        SampleOrder([source(0, [9, 4, 7]), source(100, [5, 5])], [2.0, 1.0], seed, 2)  # each worker makes its own
        .slice(start * batch + i * per_worker, start * batch + (i + 1) * per_worker)
        .sample_id
        for i in range(3 * workers)
    ]
    assert np.array_equal(np.concatenate(dealt), whole)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=8), st.integers(0, 99), st.data())
@settings(max_examples=40, deadline=None)
def test_each_source_keeps_its_own_passes(shards, seed, data):
    order = SampleOrder([source(0, shards), source(1000, [3, 4])], [3.0, 1.0], seed, 3)
    length = order.pass_length(0)
    span = order.slice(0, 4 * length * 2)
    mine = span.sample_id[span.source == 0]
    number = data.draw(st.integers(0, len(mine) // length - 1))
    assert sorted(mine[number * length : (number + 1) * length]) == list(range(length))


def test_position_a_thousand_million_reads_no_more_than_position_zero():
    class Counting(ArraySource):
        read: list[int] = []

        def row_lengths(self, shard):
            self.read.append(shard)
            return super().row_lengths(shard)

    rows = Counting(np.arange(2000 * 50), np.repeat(np.arange(2000), 50), np.ones(2000 * 50))
    for position in (0, 10**9, 10**15):
        Counting.read.clear()
        assert len(set(SampleOrder([rows], [1.0], 1).slice(position, position + 512).sample_id)) >= 511
        assert len(Counting.read) <= 32  # two windows of shards
