"""Which replica a request goes to; replicas here are names only, for nothing is sent."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.teachers.serving.client import Held
from radioplat.teachers.serving.remote_teacher import RemoteTeacher


def pool(replicas: int) -> RemoteTeacher:
    service = TeacherServiceConfig(replicas=replicas)
    made = RemoteTeacher("t", None, (2, 2), frozenset({"summary"}), service, Held(replicas, 0, 1))
    made._replicas = [SimpleNamespace(_actor_id=i) for i in range(replicas)]
    return made


@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_workers_with_one_request_open_at_a_time_ask_all_replicas_alike(replicas):
    workers = []
    for rank in range(64):
        copy = pickle.loads(pickle.dumps(pool(replicas)))  # as Ray hands one pool to every worker
        copy.turn = rank
        workers.append(copy)
    for _ in range(5):
        asked = Counter(worker.choose()._actor_id for worker in workers)
        assert len(asked) == replicas and max(asked.values()) - min(asked.values()) <= 1


def test_the_least_busy_is_asked_whoever_is_next():
    teacher = pool(4)
    teacher.turn, teacher._open = 0, {0: 2, 1: 1, 2: 0, 3: 1}
    assert [teacher.choose()._actor_id for _ in range(4)] == [2, 2, 2, 2]


def test_a_request_of_several_runs_goes_to_one_replica():
    runs = [pool(4), pool(4)]
    runs[1]._replicas.reverse()
    for number in range(20):
        key = bytes([number] * 16)
        assert len({run.choose(key)._actor_id for run in runs for _ in range(2)}) == 1
    assert {runs[0].choose(bytes([0] * 7 + [i] + [0] * 8))._actor_id for i in range(4)} == {0, 1, 2, 3}


def test_runs_that_share_a_pool_do_not_begin_alike():
    assert len({pool(4).turn for _ in range(16)}) > 8


def test_who_asks_a_pool_imports_no_torch():
    """Torch is seconds and 0.5 GB of each process on a small machine."""
    code = "import sys, radioplat.teachers.serving.remote_teacher; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
