"""A replica without Ray: several requests at once, and how long the current forward has run."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from radioplat.spec.resolved.precision import Fp32Arithmetic
from radioplat.teachers.serving.pool import fingerprint
from radioplat.teachers.serving.replica import Replica
from radioplat.teachers.serving.teacher_runner import Started, TeacherRunner
from radioplat.teachers.serving.transport import to_host

GRID, WANTED = (2, 2), frozenset({"summary", "spatial"})


def images(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)


@pytest.fixture
def replica(timm_teacher, monkeypatch):
    """replica(device) -> one of a small ViT, with its resolved teacher; Ray is asked only for the node."""
    import ray

    context = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)

    def make(device: str = "cpu"):
        teacher, _ = timm_teacher("test_vit", mode="combo", loss_type="MSE", service={"max_batch": 2})
        return Replica(teacher, device), teacher

    return make


def test_answers_are_those_of_the_teacher_alone_and_are_counted(replica):
    served, teacher = replica()
    alone = TeacherRunner(teacher, "cpu")
    with ThreadPoolExecutor(4) as students:
        answers = list(students.map(lambda seed: served.forward(images(seed), GRID, WANTED), range(6)))
    for seed, answer in enumerate(answers):
        own = to_host(alone(images(seed), GRID, WANTED))
        assert np.array_equal(answer.summary, own.summary) and np.array_equal(answer.spatial, own.spatial)
        assert answer.seconds > 0
    health = served.health()
    assert (health.forwards, health.busy_s, health.waiting) == (6, 0.0, 0)


@pytest.mark.parametrize("service", [{"pool": "shared"}, {"recent_bytes": 1_000_000}])
def test_equal_requests_are_computed_once_by_a_named_pool_or_where_the_spec_says_so(service, replica):
    _, teacher = replica()
    served = Replica(dataclasses.replace(teacher, service=dataclasses.replace(teacher.service, **service)), "cpu")
    first, again, other = (served.forward(images(seed), GRID, WANTED) for seed in (1, 1, 2))
    assert np.array_equal(first.spatial, again.spatial) and not np.array_equal(first.spatial, other.spatial)
    assert first.seconds > 0 and again.seconds == 0.0
    served.forward(images(1), GRID, frozenset({"summary"}))
    assert served.health().forwards == 3


@pytest.mark.parametrize("service", [{}, {"pool": "shared", "recent_bytes": 0}])
def test_else_they_are_computed_again(service, replica):
    _, teacher = replica()
    served = Replica(dataclasses.replace(teacher, service=dataclasses.replace(teacher.service, **service)), "cpu")
    for _ in range(2):
        assert served.forward(images(1), GRID, WANTED).seconds > 0
    assert served.health().forwards == 2


def test_it_computes_fp32_as_the_run_s_workers_do(replica):
    """The switches themselves need no GPU."""
    served, teacher = replica()
    fp32 = Fp32Arithmetic(benchmark=True, deterministic=True)
    with torch.backends.cudnn.flags(benchmark=False, deterministic=False):
        Replica(replace(teacher, fp32=fp32), "cpu").ready()
        assert torch.backends.cudnn.benchmark and torch.backends.cudnn.deterministic
        served.ready()
        assert not torch.backends.cudnn.benchmark and not torch.backends.cudnn.deterministic


def test_a_pool_on_gpus_is_shared_by_runs_with_the_same_fp32_alone(replica):
    _, teacher = replica()
    other = replace(teacher, fp32=Fp32Arithmetic(tf32=True))
    assert fingerprint(teacher) == fingerprint(other)  # a CPU has no TF32
    here, there = fingerprint(teacher, on_gpus=True), fingerprint(other, on_gpus=True)
    assert {key for key in here if here[key] != there[key]} == {"fp32 tf32"}


def test_a_forward_that_was_started_early_is_busy_from_the_end_of_the_one_before(replica, monkeypatch):
    served, _ = replica()
    served.ready()
    gates = [threading.Event(), threading.Event()]
    order = iter(gates)
    finish = Started.finish

    def held(self):
        assert next(order).wait(60)
        return finish(self)

    monkeypatch.setattr(Started, "finish", held)
    with ThreadPoolExecutor(2) as students:
        answers = [students.submit(served.forward, images(seed), GRID, WANTED) for seed in range(2)]
        deadline = time.monotonic() + 60
        while served._running < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)
        first = served.health().busy_s
        assert first >= 0.5
        gates[0].set()
        while served.health().forwards < 1:
            time.sleep(0.01)
        assert served.health().busy_s < first
        gates[1].set()
        assert all(len(answer.result(60)) == 2 for answer in answers)
    assert served.health().busy_s == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("tf32", "precision"), [(True, "tf32"), (False, "float32"), (None, "float32")])
def test_on_a_gpu_its_precision_names_tf32(replica, tf32, precision):
    _, teacher = replica("cuda")
    assert TeacherRunner(replace(teacher, fp32=Fp32Arithmetic(tf32=tf32)), "cuda").precision == precision


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_overlapping_requests_get_what_they_would_get_alone(replica):
    served, teacher = replica("cuda")
    alone = TeacherRunner(teacher, "cuda")
    own = [to_host(alone(images(seed), GRID, WANTED)) for seed in range(32)]
    with ThreadPoolExecutor(4) as students:
        answers = list(students.map(lambda seed: served.forward(images(seed), GRID, WANTED), range(32)))
    for mine, answer in zip(own, answers, strict=True):
        assert np.array_equal(answer.summary, mine.summary) and np.array_equal(answer.spatial, mine.spatial)
        assert 0 < answer.seconds < 10
