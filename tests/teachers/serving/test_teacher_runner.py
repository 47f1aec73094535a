"""A teacher that runs out of memory says which field to change; the limits are real."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import ray
from forked import Forked, run_code

from radioplat.errors import TeacherOutOfMemory
from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.teachers.serving.client import Held
from radioplat.teachers.serving.remote_teacher import RemoteTeacher, SharedView

# Inline and in a replica. From limit() on the process may allocate 64 MiB more than it has then.
LIMITED = """
import pickle, resource, sys
import numpy as np
from radioplat.errors import RadioplatError
from radioplat.teachers.serving.client import InlineTeacher
from radioplat.teachers.serving.replica import Replica

def limit():
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + 64 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

def shown(ask):
    try:
        print("rows", len(ask()))
    except RadioplatError as error:
        print(type(error).__name__, error)

teacher, first = pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2] == "limit first"
grid, wanted, pixels = (2, 2), frozenset({"summary", "spatial"}), np.zeros((4, 3, 64, 64), np.uint8)
replica = Replica(teacher, "cpu")
if first:
    limit()
    shown(lambda: [InlineTeacher(teacher, grid, "cpu")])
    shown(lambda: [replica.ready()])
else:
    inline = InlineTeacher(teacher, grid, "cpu")
    replica.ready()
    limit()
    shown(lambda: inline.submit(inline.share(pixels), 0)())
    shown(lambda: replica.forward(pixels, grid, wanted))
"""


def answers(teacher, order: str) -> list[str]:
    """What a user reads of a teacher inside the worker, and of one in an actor."""
    process = Forked(run_code, LIMITED, pickle.dumps(teacher).hex(), order)
    assert process.wait(100) == 0, process.output
    return [line for line in process.output.splitlines() if line.startswith(("rows", "TeacherOutOfMemory"))]


def test_a_forward_that_does_not_fit_names_max_batch(timm_teacher):
    """The input of 2048 images needs 101 MB in fp32."""
    teacher, _ = timm_teacher("test_vit", mode="combo", loss_type="MSE", service={"max_batch": 2048})
    inline, actor = answers(teacher, "limit later")
    assert inline == actor
    forward = "teacher t ran out of memory in a forward of 2048 images of 64 x 64 px"
    assert inline.startswith(f"TeacherOutOfMemory teachers.t.max_batch: {forward}")
    assert "allocate memory" in inline and "Lower it, for example to 1024" in inline
    small, _ = timm_teacher("test_vit", mode="combo", loss_type="MSE", service={"max_batch": 4})
    assert answers(small, "limit later") == ["rows 4", "rows 4"]


def test_weights_that_do_not_fit_name_the_teacher(timm_teacher):
    """Of 88 MB; smaller forwards would not help."""
    teacher, _ = timm_teacher("vit_small_patch16_224", 224, mode="combo", loss_type="MSE")
    inline, actor = answers(teacher, "limit first")
    assert inline == actor
    assert inline.startswith(
        "TeacherOutOfMemory teachers.t: the weights of teacher t do not fit into the memory of cpu"
    )
    assert "max_batch" not in inline


def test_a_worker_gets_the_replicas_error_without_rays_traceback(monkeypatch):
    """From the exception that Ray makes of an actor's."""
    raised = TeacherOutOfMemory("too many images", where="teachers.t.max_batch", hint="Lower it.")
    by_ray = ray.exceptions.RayTaskError("forward", "Traceback (most recent call last)", raised).as_instanceof_cause()
    assert type(by_ray) is not TeacherOutOfMemory and by_ray.restart_cause == "error"
    service = TeacherServiceConfig()
    client = RemoteTeacher("t", None, (2, 2), frozenset({"summary"}), service, Held(1, 0, 1))
    client._replicas = [SimpleNamespace(_actor_id=7, forward=SimpleNamespace(remote=lambda *arguments: None))]

    def get(*arguments, **options):
        raise by_ray

    monkeypatch.setattr(ray, "get", get)
    answer = client.submit(SharedView(None, None), 0)
    assert client._open == {7: 1}
    with pytest.raises(TeacherOutOfMemory) as caught:
        answer()
    assert str(caught.value) == "teachers.t.max_batch: too many images. Lower it." and client._open == {7: 0}
