"""Stages: the schedule starts again, who is away gets factor 0, and all of it follows from the step alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.design.partitions import Partitions
from radioplat.design.stages import away_by_step, resting, schedule_at, total_steps
from radioplat.optim.optimizer import learning_rate
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.distill import PartitionConfig

NAMES = ["a", "b", "c"]


def spec_of(stages: list[dict], **train):
    return load_spec({"distill": {"stages": stages}, "train": train})


def rates(spec, steps: int, per_epoch: int = 10) -> list[float]:
    total = total_steps(spec, per_epoch)
    found = []
    for step in range(steps):
        optim, at, length = schedule_at(spec, step, total)
        found.append(learning_rate(optim, at, length, per_epoch))
    return found


def test_the_schedule_starts_again_with_its_warm_up():
    spec = spec_of(
        [{"steps": 20}, {"steps": 30, "lr": 0.5}],
        optim={"lr": 2.0, "policy": "cosine", "warmup_epochs": 0.5},
    )
    assert total_steps(spec, 10) == 50
    curve = [(1 + math.cos(math.pi * s / 15)) / 2 for s in range(15)]
    first = [2.0 * (s + 1) / 5 for s in range(5)] + [2.0 * c for c in curve]
    curve = [(1 + math.cos(math.pi * s / 25)) / 2 for s in range(25)]
    second = [0.5 * (s + 1) / 5 for s in range(5)] + [0.5 * c for c in curve]
    assert rates(spec, 50) == pytest.approx(first + second)


def test_a_run_that_is_cut_short_has_the_rates_of_the_whole():
    stages = [{"steps": 20}, {"steps": 30, "lr": 0.5}]
    short = spec_of(stages, max_steps=25)
    assert total_steps(short, 10) == 25
    assert rates(short, 25) == rates(spec_of(stages), 25)


def test_without_stages_epochs_count():
    spec = spec_of([], num_epochs=3, optim={"lr": 2.0, "policy": "cosine"})
    assert total_steps(spec, 10) == 30 and away_by_step(spec, NAMES) == ()
    assert schedule_at(spec, 7, 30) == (spec.train.optim, 7, 30)
    spec.train.max_steps = 12
    assert total_steps(spec, 10) == 12


@given(st.lists(st.tuples(st.integers(1, 5), st.sets(st.sampled_from(NAMES))), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_who_is_away_has_factor_zero_and_the_others_what_they_had(stages):
    spec = spec_of([{"steps": steps, "teachers": sorted(who)} for steps, who in stages])
    config = [PartitionConfig(0.5, ["a"]), PartitionConfig(0.5, ["b"])]
    plain = Partitions.of(config, 5, 4)
    staged = Partitions.of(config, 5, 4, away_by_step(spec, NAMES))
    alone = Partitions.of([], 5, 4, away_by_step(spec, NAMES))
    step = 0
    for steps, who in stages:
        here = who or set(NAMES)
        for micro_batch in range(4 * step, 4 * (step + steps)):
            before = plain.factors(micro_batch)
            assert staged.factors(micro_batch) == {n: f for n, f in before.items() if n in here} | {
                n: 0.0 for n in NAMES if n not in here
            }
            assert alone.factors(micro_batch) == {n: 0.0 for n in NAMES if n not in here}
        step += steps


def test_a_teacher_rests_until_shortly_before_it_comes_back():
    away = ((0, frozenset()), (100, frozenset("a")), (160, frozenset("ab")), (300, frozenset("b")))
    rests = {step: resting(away, 400, step) for step in range(400)}
    assert [s for s in rests if "a" in rests[s]] == list(range(100, 290))  # a twentieth of 200 steps before it is asked
    assert [s for s in rests if "b" in rests[s]] == list(range(160, 400))  # it never comes back
    assert not any("c" in names for names in rests.values())
    assert resting((), 400, 7) == frozenset()
    short = ((0, frozenset()), (10, frozenset("a")), (29, frozenset()))
    assert not any(resting(short, 100, step) for step in range(100))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.frozensets(st.sampled_from(NAMES))), min_size=1, max_size=6),
    st.integers(0, 10),
)
def test_nobody_rests_who_is_asked(stages, cut):
    away, first = [], 0
    for length, names in stages:
        away.append((first, names))
        first += length
    total = max(1, first - cut)
    for step in range(total):
        absent = next(names for begin, names in reversed(away) if begin <= step)
        following = next((names for begin, names in reversed(away) if begin <= step + 1), frozenset())
        rests = resting(away, total, step)
        assert rests <= absent
        assert step + 1 == total or rests <= following  # awake a step before it is asked at the latest
