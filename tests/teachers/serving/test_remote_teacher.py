"""Pools on a real Ray: whoever asks, dies or hangs, each micro-batch gets its features."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import save_file

from radioplat.errors import PlacementError, SpecError, TeacherSilent, TrainingError
from radioplat.teachers.serving.client import Held, InlineTeacher
from radioplat.teachers.serving.named_pools import pool_statuses, stop_pools
from radioplat.teachers.serving.remote_teacher import await_pool, start_pool, stop_pool
from radioplat.teachers.serving.replica_health import health_of
from radioplat.teachers.serving.transport import to_host

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
GRID = (2, 2)


@pytest.fixture
def slow(resolve, tmp_path):
    """slow(service, **kwargs) -> a teacher of the class above."""

    def make(service: dict, **kwargs):
        import slow_teacher

        torch.manual_seed(0)
        path = tmp_path / "slow.safetensors"
        save_file(slow_teacher.Slow().state_dict(), path)
        entry = {"model": {"backbone": {"type": "slow_teacher:Slow", "kwargs": kwargs}}, "input_size": 32}
        entry |= {"pretrained_teacher_model_path": str(path), "mode": "combo", "loss_type": "MSE"}
        return resolve(service={"num_cpus": 1, **service}, **entry)

    return make


@pytest.fixture
def pool(ray_cluster):
    """pool(teacher) -> its pool, ready; ended with the test."""
    opened = []

    def start(teacher):
        opened.append(start_pool(teacher, GRID, 0))
        await_pool(opened[-1])
        return opened[-1]

    yield start
    for each in opened:
        stop_pool(each)


def images(seed: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, 3, side, side), dtype=np.uint8)


def ask(pool, seeds, side: int = 32):
    return [pool.submit(pool.share(images(seed, side)), seed) for seed in seeds]


def same(packed, other) -> bool:
    packed, other = to_host(packed), to_host(other)
    return np.array_equal(packed.summary, other.summary) and np.array_equal(packed.spatial, other.spatial)


def test_a_pool_that_rests_frees_its_process_until_it_is_asked(pool, timm_teacher):
    teacher, _ = timm_teacher("test_vit", mode="combo", loss_type="MSE", service={"max_batch": 8, "num_cpus": 0.5})
    rested = pool(teacher)
    before = ask(rested, [1])[0]()
    first = health_of(rested.replicas()[0]).process
    assert rested.held().replicas == 1
    rested.rest()
    assert rested.held().replicas == 0 and ray.get(rested.controller.status.remote()).replicas == 0
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{first}") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{first}")
    assert same(ask(rested, [1])[0](), before)  # asked too early: it starts
    rested.askers = 2  # another group of workers asks, too
    rested.rest()
    assert ray.get(rested.controller.status.remote()).replicas == 1
    ray.get(rested.controller.rest.remote("other", 2))
    assert ray.get(rested.controller.status.remote()).replicas == 0
    rested.wake()
    assert rested.held().replicas == 1 and same(ask(rested, [1])[0](), before)


def test_a_pool_that_cannot_come_back_after_its_rest_says_so(pool, timm_teacher):
    service = {"num_cpus": 3, "timeout_s": 1, "recovery_timeout_s": 2}
    rested = pool(timm_teacher("test_vit", mode="combo", loss_type="MSE", service=service)[0])
    rested.say = (said := []).append
    rested.rest()
    other = ray.remote(num_cpus=3)(type("Other", (), {"ready": lambda self: True})).remote()
    ray.get(other.ready.remote())
    try:
        with pytest.raises(TrainingError, match="t had no replicas in a stage without it, and none has started in 2 s"):
            ask(rested, [1])[0]()
    finally:
        ray.kill(other)
    assert said and "for a replica of teacher t after a stage without it" in said[0]


@pytest.mark.proof
def test_a_pool_that_others_ask_too_gives_the_same_bits(pool, timm_teacher):
    plain, _ = timm_teacher("test_vit", mode="combo", loss_type="MSE", service={"max_batch": 8, "num_cpus": 0.5})

    def teacher(**service):
        return dataclasses.replace(plain, service=dataclasses.replace(plain.service, **service))

    shared, own = pool(teacher(pool="lab", replicas=2)), InlineTeacher(teacher(), GRID, "cpu")
    other = pool(teacher(pool="lab", num_cpus=3))  # as large as whoever started it said
    try:
        assert shared.controller == other.controller
        mine, theirs = ask(shared, range(12), 64), ask(other, range(100, 112), 64)
        for seed, answer in zip((*range(12), *range(100, 112)), (*mine, *theirs), strict=True):
            assert same(answer(), own.submit(images(seed, 64), seed)())
        assert shared.held() == other.held() == Held(2, 0, 0.5)
        statuses = [health_of(replica) for replica in shared.replicas()]
        assert {shape for health in statuses for shape in health.shapes} == {(8, 3, 64, 64)}
        assert all(health.forwards for health in statuses) and sum(p.forwards for p in statuses) <= 24
        (line,) = pool_statuses()
        assert (line.name, line.status.replicas, line.status.waiting) == ("lab", 2, 0)
        with pytest.raises(SpecError, match=r"max_batch: 8 there, 4 here.*") as caught:
            start_pool(teacher(pool="lab", max_batch=4), GRID, 0)
        assert "teachers.t.pool" in str(caught.value)
        stop_pool(other)
        assert same(ask(shared, [3], 64)[0](), own.submit(images(3, 64), 3)()), "a named pool outlives a run"
    finally:
        assert stop_pools(["lab"]) == ["lab/t"]
    deadline = time.monotonic() + 60
    while pool_statuses():  # Ray lists a dead actor's name for a moment
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.proof
def test_an_upsampled_teacher_is_served_and_another_upsampler_is_not(pool, upsampled, save_featsharp):
    teacher = upsampled(service={"max_batch": 4, "num_cpus": 0.5, "pool": "sharp"})
    shared, own = pool(teacher), InlineTeacher(teacher, GRID, "cpu")
    try:
        assert same(ask(shared, [1], 128)[0](), own.submit(images(1, 128), 1)())
        assert health_of(shared.replicas()[0]).shapes == {(4, 3, 128, 128)}
        drawn = dataclasses.replace(teacher, sizes=((64, 1.0),))
        plain = dataclasses.replace(teacher, upsample_factor=1, upsampler_checkpoint=None)
        for other, said in ((drawn, "for 64 px here"), (plain, "none here")):
            with pytest.raises(SpecError, match=said) as caught:
                start_pool(other, GRID, 0)
            assert "upsampler: featsharp 1" in str(caught.value)
        save_featsharp(seed=1)  # a rerun of train_upsampler replaces the file that the pool has loaded
        with pytest.raises(SpecError, match="upsampler: featsharp 1"):
            start_pool(teacher, GRID, 0)
        save_featsharp(seed=0)
        assert start_pool(teacher, GRID, 0).controller == shared.controller
    finally:
        stop_pools(["sharp"])


def test_a_replica_that_is_killed_at_work_costs_no_answer(pool, slow):
    teacher = slow({"replicas": 2}, seconds=0.2)
    asked, own = pool(teacher), InlineTeacher(slow({}), GRID, "cpu")
    answers = ask(asked, range(20))
    before = [health_of(replica).process for replica in asked.replicas()]
    assert sum(health_of(replica).waiting for replica in asked.replicas()) > 2
    os.kill(before[0], signal.SIGKILL)
    for seed, answer in enumerate(answers):
        assert same(answer(), own.submit(images(seed), seed)())
    assert before[0] not in {health_of(replica).process for replica in asked.replicas()}


class Asker:
    """What a training worker does; Ray moves tensors between actors only."""

    def __init__(self, pool) -> None:
        pool.choose_transport("cpu", cached=False)
        assert pool.direct
        self.pool = pool

    def ask(self, seeds: list[int], kill: int = 0) -> list:
        answers = ask(self.pool, seeds)
        if kill:
            os.kill(kill, signal.SIGKILL)
        return [to_host(answer()) for answer in answers for _ in range(2)]  # asked for again they come again


def choose_without_nixl(pool) -> bool:
    """Return whether tensors go from device to device in a process in which NIXL is not installed."""
    sys.modules["nixl"] = None
    pool.choose_transport("cpu", cached=False)
    return pool.direct


@pytest.mark.proof
def test_tensors_from_device_to_device_survive_a_killed_replica(pool, slow):
    asked, own = pool(slow({"transport": "nixl"}, seconds=0.1)), InlineTeacher(slow({}), GRID, "cpu")
    asker = ray.remote(num_cpus=0)(Asker).remote(asked)
    try:
        for kill in (0, health_of(asked.replicas()[0]).process, 0):
            for i, found in enumerate(ray.get(asker.ask.remote([1, 2, 3, 4], kill))):
                assert same(found, own.submit(images(1 + i // 2), i)())
        assert health_of(asked.replicas()[0]).process != kill
    finally:
        ray.kill(asker)
    choose = ray.remote(num_cpus=0)(choose_without_nixl)
    automatic = dataclasses.replace(asked, service=slow({}).service)
    assert not ray.get(choose.remote(automatic)), "features go through the object store"
    with pytest.raises(PlacementError, match="the training worker of teacher t cannot load NIXL") as caught:
        ray.get(choose.remote(asked))
    assert "teachers.t.transport" in str(caught.value)


@pytest.mark.proof
def test_a_forward_that_hangs_is_run_again(pool, slow, tmp_path):
    hang = tmp_path / "hang"
    asked, own = pool(slow({"timeout_s": 4}, hang=str(hang))), InlineTeacher(slow({}), GRID, "cpu")
    asked.say = (said := []).append
    hang.touch()
    assert same(ask(asked, [1])[0](), own.submit(images(1), 1)())
    assert any("restarted" in line and "teacher t" in line for line in said) and not hang.exists()


@pytest.mark.proof
def test_a_forward_that_hangs_again_is_given_up(pool, slow, tmp_path):
    hang = tmp_path / "hang"
    asked = pool(slow({"timeout_s": 4}, hang=str(hang)))
    asked.say = (said := []).append
    (tmp_path / "hang.always").touch()
    hang.touch()
    with pytest.raises(TeacherSilent, match="teacher t gave no answer within 4 s, nor after a restart") as caught:
        ask(asked, [2])[0]()
    assert "teachers.t.timeout_s" in str(caught.value) and sum("restarted" in line for line in said) == 1


@pytest.mark.proof
def test_replicas_come_where_requests_queue_up_and_go_where_none_do(pool, slow):
    asked = pool(slow({"replicas": [1, 2]}, seconds=0.3))
    assert len(asked.replicas()) == asked.held().replicas == 1
    deadline, answers, seed = time.monotonic() + 90, [], 0
    while len(ray.get(asked.controller.replicas.remote())) < 2 and time.monotonic() < deadline:
        answers += ask(asked, range(seed, seed + 4))
        seed += 4
        answers[-4]()
    assert len(ray.get(asked.controller.replicas.remote())) == 2
    asked.forget_replicas()
    assert len(asked.replicas()) == asked.held().replicas == 2
    for answer in answers:
        answer()
    while len(ray.get(asked.controller.replicas.remote())) > 1 and time.monotonic() < deadline + 60:
        time.sleep(0.5)
    assert len(ray.get(asked.controller.replicas.remote())) == 1
    asked.forget_replicas()
    ask(asked, [0])[0]()
