"""Closed forms of ``benchmarks.scale_network``."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale_network import HALF, PER_NODE, PLACEMENTS, Cluster, Network, best, costs

STUDENT, TEACHER = Network(1e8, 100, 64, 1e6), Network(2e8, 100, 32, 1e6)


def cluster(gpus: int, **fields) -> Cluster:
    """Fast beside its GPUs, so that each test says what is slow."""
    fast = {"network": 1e15, "host": 1e15, "storage": 1e15, "hits": 1.0}
    own = {"student": STUDENT, "teachers": (TEACHER,), "views": (16,), "grid": 4, "utilisation": 1.0, "flops": 1e12}
    return Cluster(gpus, **(fast | own | fields))


def found(c: Cluster) -> dict:
    return {cost.placement: cost for cost in costs(c)}


def test_bytes_of_pixels_features_and_gradients():
    c = cluster(64, views=(16, 16, 32), teachers=(TEACHER,) * 3)
    assert c.pixels == 3 * 16**2 + 3 * 32**2, "teachers of one size share a view"
    assert c.features == 3 * 2 * 32 * (1 + 16)
    assert c.gradients(1) == 0 and c.gradients(8) == pytest.approx(2 * 7 / 8 * 4e8)


def test_time_is_arithmetic_over_peak():
    c = cluster(8)
    wide = 1 + HALF / c.batch
    assert c.student_s(c.batch) == pytest.approx(6 * 1e8 * 100 / 1e12 * wide)
    assert c.teachers_s(c.batch) == pytest.approx(2 * 2e8 * 100 / 1e12 * wide)
    assert c.student_s(HALF) == pytest.approx(2 * 6 * 1e8 * 100 / 1e12) and math.isinf(c.student_s(0))


def test_with_a_free_network_rates_are_those_of_the_gpus():
    c = cluster(64)
    s, t = c.student_s(c.batch), c.teachers_s(c.batch)
    rates = found(c)
    assert rates["inline"].images_s == pytest.approx(64 / (s + t))
    assert rates["cache"].images_s == pytest.approx(64 / s)
    for name in ("colocate", "separate"):
        best_split = max(min((8 - k) / s, k / t) for k in range(1, 8)) * 8
        assert rates[name].images_s == pytest.approx(best_split) and rates[name].images_s <= rates["inline"].images_s
    assert best(costs(c)).placement == "cache"


def test_a_node_alone_has_no_teacher_nodes():
    rates = found(cluster(8))
    assert rates["separate"].images_s == 0 and rates["separate"].bound == "needs a second node"
    assert rates["colocate"].teacher_gpus and rates["inline"].network_bytes == cluster(8).image


def test_what_crosses_the_network_by_placement():
    c = cluster(64)
    exchange = c.gradients(8) * 8 / (64 * c.batch)
    rates = found(c)
    assert rates["inline"].network_bytes == pytest.approx(c.image + exchange)
    assert rates["cache"].network_bytes == pytest.approx(c.image + exchange + c.features)
    k = rates["separate"].teacher_gpus // PER_NODE
    exchange = c.gradients(8 - k) * (8 - k) / ((64 - 8 * k) * c.batch)
    assert rates["separate"].network_bytes == pytest.approx(c.image + exchange + c.features + c.pixels)
    assert rates["colocate"].host_bytes == c.pixels + c.features


def test_teachers_that_do_not_fit_beside_the_student_move_out():
    tight = STUDENT.parameters * 20 + 40e6  # the student and forty images; no room for 4e8 bytes of weights
    rates = found(cluster(64, memory=tight, hits=0.0))
    assert rates["inline"].images_s == rates["cache"].images_s == 0
    assert rates["colocate"].images_s > 0 and rates["separate"].images_s > 0


def test_a_slow_network_stops_separate_nodes_and_slow_storage_the_cache():
    c = cluster(64)
    slow = replace(c, network=1e4, accumulate=10**6, image=0.1)
    assert found(slow)["separate"].bound in ("network", "teachers' network")
    assert found(slow)["separate"].images_s < found(slow)["inline"].images_s
    slow = replace(c, storage=1e5, image=0.1)
    assert found(slow)["cache"].bound == "storage"
    assert found(slow)["cache"].images_s == pytest.approx(1e5 / (0.1 + c.features))


@given(st.sampled_from([8, 16, 64, 512]), st.floats(1e8, 1e12), st.floats(0, 1), st.floats(8e9, 2e11))
def test_more_of_anything_is_never_slower(gpus, network, hits, memory):
    c = cluster(gpus, network=network, hits=hits, memory=memory)
    better = replace(c, network=2 * network, memory=2 * memory, hits=(1 + hits) / 2)
    now, then = found(c), found(better)
    assert tuple(now) == PLACEMENTS
    for name in PLACEMENTS:
        assert then[name].images_s >= now[name].images_s * (1 - 1e-9)
