"""Replicas by the closed form: workers * teacher / (worker * share of a GPU)."""

from __future__ import annotations

import pytest

from radioplat.cluster.resources import Resources
from radioplat.design.workload.pace import automatic_replicas, pace_of, replicas_needed
from radioplat.design.workload.work import Work
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers

WORK = Work(student=300.0, inline={"i": 100.0}, outer={"a": 200.0, "b": 800.0})  # a worker: 400 an image


def teachers_of(workers: int, **services):
    entries = [{"name": name, "model": {"backbone": {"type": "test_vit"}}} for name in ("i", "a", "b")]
    tree = {
        "train": {"num_gpus": workers, "global_batch_size": 32 * workers},
        "distill": {"teacher": entries},
        "teachers": {"i": {"placement": "inline"}, **services},
    }
    spec = load_spec(tree)
    return spec, resolve_teachers(spec)


def test_the_formula():
    assert replicas_needed(WORK, 4, {"a": 1.0, "b": 0.5}) == {"a": 2.0, "b": 16.0}
    assert replicas_needed(WORK, 4, {"a": 0.0, "b": 1.0}) == {"b": 8.0}  # a replica on CPUs has no such pace


def test_workers_wait_for_the_slowest():
    _, teachers = teachers_of(4, a={"replicas": 2}, b={"replicas": [1, 4]})
    found = pace_of(WORK, 4, teachers)
    assert found.running == {"a": 2, "b": 4} and found.slow == ["b"]
    assert found.busy == pytest.approx(0.5) and found.student == pytest.approx(0.5 * 300 / 400)
    _, enough = teachers_of(4, a={"replicas": 3}, b={"replicas": 8})
    kept = pace_of(WORK, 4, enough)
    assert kept.busy == 1 and kept.student == 0.75 and not kept.slow
    _, on_cpus = teachers_of(4, a={"replicas": 2}, b={"num_gpus": 0})
    assert list(pace_of(WORK, 4, on_cpus).needed) == ["a"]


@pytest.mark.parametrize(
    ("gpus", "services", "counts"),
    [
        (100, {"a": {"replicas": "auto"}, "b": {"replicas": "auto"}}, {"a": 2, "b": 8}),
        (100, {"a": {"replicas": "auto", "num_gpus": 0.5}, "b": {"replicas": 8}}, {"a": 4}),
        (100, {"a": {"replicas": "auto", "num_gpus": 0}, "b": {"replicas": "auto"}}, {"a": 1, "b": 8}),
        (8, {"a": {"replicas": "auto"}, "b": {"replicas": "auto"}}, {"a": 1, "b": 3}),  # the last one gets the rest
        (8, {"a": {"replicas": "auto", "num_gpus": 0.5}, "b": {"replicas": 3}}, {"a": 2}),
        (4, {"a": {"replicas": "auto"}, "b": {"replicas": "auto"}}, {"a": 1, "b": 1}),  # `placement` refuses these
        (8, {"a": {"replicas": 1}, "b": {"replicas": 2}}, {}),
    ],
)
def test_auto_takes_what_keeps_up_and_fits(gpus, services, counts):
    spec, teachers = teachers_of(4, **services)
    assert automatic_replicas(spec, teachers, WORK, Resources(100, gpus)) == counts


def test_auto_is_one_until_a_start_decides():
    spec, teachers = teachers_of(1, a={"replicas": "auto"})
    assert teachers[1].service.bounds == (1, 1)
