"""Why a group ended, from what Ray Train raises; its own exception classes, and what failed inside."""

from __future__ import annotations

import pickle

import pytest
import torch
from ray.exceptions import ActorDiedError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2.api.exceptions import PreemptionError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo

from radioplat.errors import TeacherOutOfMemory
from radioplat.launch.ray.causes import cause_of, has_died, is_planned
from radioplat.training.guards.pause import Paused

BROKEN = RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1234")


def group(*failures: BaseException) -> WorkerGroupError:
    """What the controller is given."""
    return WorkerGroupError("Training failed", dict(enumerate(failures)))


def dead() -> WorkerHealthCheckFailedError:
    """A worker that does not answer because it is gone."""
    return WorkerHealthCheckFailedError("A worker health check failed.", failure=ActorDiedError())


def test_a_pause_names_its_own_cause_and_reason():
    error = group(Paused("resized", ""), Paused("resized", "room for 3"), BROKEN)
    assert is_planned(error) and cause_of(error, [], []) == ("resized", "room for 3")
    assert is_planned(pickle.loads(pickle.dumps(error)))


def test_the_dead_count_before_those_that_outlived_them():
    error = group(BROKEN, dead())
    assert has_died(error) and not is_planned(error)
    cause, detail = cause_of(error, [], [])
    assert cause == "worker_killed" and detail.startswith("rank 1 is gone: ActorDiedError")


def test_a_broken_connection_whose_reason_was_found_by_looking():
    assert cause_of(group(BROKEN), [], [1]) == ("worker_killed", "rank 1 is gone")
    assert cause_of(group(BROKEN), ["abcdef0123456789"], []) == ("node_lost", "lost node abcdef01")


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        MemoryError(),
        WorkerHealthCheckFailedError("", failure=ActorDiedError()),
    ],
)
def test_memory(failure):
    if isinstance(failure, WorkerHealthCheckFailedError):
        failure.health_check_failure.error_msg = "Task was killed due to the node running low on memory."
    assert cause_of(group(BROKEN, failure), [], [])[0] == "oom"


@pytest.mark.parametrize("words", ["CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "out of memory"])
def test_memory_without_torchs_allocator(words):
    assert cause_of(group(BROKEN, RuntimeError(f"CUDA error: {words}")), [], [])[0] == "oom"


def test_a_teachers_lack_of_memory_halves_no_student():
    teacher = TeacherOutOfMemory("teacher t ran out of memory", where="teachers.t.max_batch")
    cause, detail = cause_of(group(BROKEN, teacher), [], [])
    assert cause == "error" and "teachers.t.max_batch" in detail


def test_what_names_its_cause_is_believed():
    hang = TimeoutError("no step in 600 s")
    hang.restart_cause = "hang"
    assert cause_of(group(BROKEN, hang), [], []) == ("hang", "TimeoutError: no step in 600 s")


def test_a_notice_that_ran_out():
    error = PreemptionError(preemption_info=PreemptionInfo(None, {"n": [0]}), drain_timed_out=True)
    assert cause_of(error, [], [])[0] == "drained"


def test_anything_else_is_an_error():
    assert cause_of(group(ValueError("no\nsuch")), [], []) == ("error", "rank 0: ValueError: no such")
    assert cause_of(OSError("gone"), [], []) == ("error", "OSError: gone")
    assert cause_of(None, [], []) == ("unknown", "")
