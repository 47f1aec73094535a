"""Several students on two workers of a cluster, with teachers as actors; workers die meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil
import pytest
import safetensors.torch
import torch

from radioplat.spec.loading.load import load_spec
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.goodput import Goodput
from radioplat.tracking.status import read_status
from radioplat.tracking.teacher_cost import TeacherCosts
from radioplat.training.accounting.prove import prove_run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
STUDENTS = [
    {"name": "base"},
    {"name": "small", "model": {"backbone": {"kwargs": {"embed_dim": 24, "num_heads": 2}}}},
    {"name": "cnn", "model": {"backbone": {"type": "resnet10t", "kwargs": {}, "freeze_norm": True}}},
]
EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step", "train.keep_last=9")


@pytest.fixture(scope="module")
def apart(make_spec, distil, tmp_path_factory):
    """The students in one process."""
    return distil(make_spec(tmp_path_factory.mktemp("apart"), {"distill": {"students": STUDENTS}}), *EVERY_SECOND)


def losses(folder) -> dict[int, dict[str, float]]:
    """By step, of the last start that ran it."""
    lines = [line for line in read_status(folder / "status.json") if "loss" in line.get("kpi", {})]
    return {line["step"]: {k: v for k, v in line["kpi"].items() if k.startswith("loss")} for line in lines}


def worker() -> psutil.Process | None:
    """One of the training workers of this test's cluster."""
    for process in psutil.Process().children(recursive=True):
        try:
            if "TrainWorker" in " ".join(process.cmdline()):
                return process
        except psutil.Error:
            continue
    return None


def same(ours, theirs) -> None:
    """Equal but for the order of sums."""
    assert ours.keys() == theirs.keys()
    for step, terms in theirs.items():
        assert ours[step] == pytest.approx(terms, rel=1e-5, abs=1e-6), step


def test_two_workers_one_of_which_is_killed(apart, make_spec, distil, tmp_path, ray_environment, monkeypatch):
    for name, value in ray_environment.items():
        monkeypatch.setenv(name, value)
    cluster = {"mode": "ray", "cpu_hour_price": 3.6}
    changes = {"train": {"num_gpus": 2}, "cluster": cluster, "distill": {"students": STUDENTS}}
    killed: list[int] = []

    def kill() -> None:
        small = tmp_path / "students" / "small" / "distill"
        while not list(small.glob("model_epoch_000_step_00002*")):
            time.sleep(0.02)
        if (process := worker()) is not None:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    run = distil(make_spec(tmp_path, changes), *EVERY_SECOND)
    assert killed and Attempts(run.folder).last == 2
    bills = {}
    for student in STUDENTS:
        name = student["name"]
        ours, theirs = run.result.students[name], apart.result.students[name]
        same(losses(ours.folder), losses(theirs.folder))
        a, b = (safetensors.torch.load_file(one.checkpoint / "student.safetensors") for one in (ours, theirs))
        assert all(torch.allclose(a[key], b[key], atol=1e-4) for key in b)
        assert prove_run(ours.folder, load_spec(make_spec(tmp_path)).dataset).holds
        bills[name] = TeacherCosts.read(ours.folder).teachers["lite0"]
    assert len({bill.images for bill in bills.values()}) == 1
    # The bill of the whole has the workers and, of all students together, the teachers' actors.
    costs = [TeacherCosts.read(student.folder).teachers.values() for student in run.result.students.values()]
    held = sum(cost.cpu_seconds * cost.held_seconds / cost.seconds for each in costs for cost in each if cost.seconds)
    account = run.result.account
    assert held > 0 and account.teacher_cpu_seconds == pytest.approx(held)
    assert account.price == pytest.approx((account.cpu_seconds + account.teacher_cpu_seconds) * 0.001)
    assert Goodput.read(run.folder) == account


@pytest.mark.proof
def test_exact_sums_make_two_workers_one_of_which_is_killed_the_same_bytes(
    make_spec, distil, tmp_path, ray_environment, monkeypatch
):
    for name, value in ray_environment.items():
        monkeypatch.setenv(name, value)
    exact = {"reduction": "exact", "engine": "ddp", "zero_stage": 0}
    students = {"distill": {"students": STUDENTS}}
    alone = distil(make_spec(tmp_path / "alone", {"train": exact, **students}), *EVERY_SECOND)
    killed: list[int] = []

    def kill() -> None:
        while not list((tmp_path / "two" / "students" / "cnn" / "distill").glob("model_epoch_000_step_00002*")):
            time.sleep(0.02)
        if (process := worker()) is not None:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    changes = {"train": {"num_gpus": 2, **exact}, "cluster": {"mode": "ray"}, **students}
    two = distil(make_spec(tmp_path / "two", changes), *EVERY_SECOND)
    assert killed and Attempts(two.folder).last == 2
    for student in STUDENTS:
        ours, theirs = (one.result.students[student["name"]].checkpoint for one in (two, alone))
        for file in ("student.safetensors", "heads.safetensors", "optimizer.safetensors"):
            assert (ours / file).read_bytes() == (theirs / file).read_bytes(), (student["name"], file)
