"""Checkpoints are written behind the run's back; what fails there leaves the one before, and is said."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import resource
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.train import TrainConfig
from radioplat.training.checkpoints.checkpoint import (
    RunState,
    Snapshot,
    clear_left_behind,
    commit,
    newest,
    snapshot,
    verified_state,
)
from radioplat.training.checkpoints.writer import CheckpointWriter


@pytest.fixture(scope="module")
def made():
    """made(step, numbers) -> a snapshot of step ``step`` with ``numbers`` more fp32 numbers in it."""
    torch.manual_seed(0)
    student = Student(StudentArchitecture("test_efficientnet", heads=(HeadArchitecture("a", 4),)))

    def make(step: int, numbers: int = 1) -> Snapshot:
        moments = {"x.exp_avg": torch.full((numbers,), float(step))}
        return snapshot(f"model_epoch_{step:03d}", student, student.state_dict(), moments, RunState(step))

    return make


@pytest.fixture
def writer(tmp_path):
    """writer(**fields of the spec's train) -> one on ``tmp_path / 'run'``; its warnings are in ``said``."""
    opened = []

    def make(**changes) -> CheckpointWriter:
        (tmp_path / "run").mkdir(exist_ok=True)
        found = CheckpointWriter(tmp_path / "run", dataclasses.replace(TrainConfig(), **changes))
        found.said = []
        found.warn = found.said.append
        opened.append(found)
        return found

    yield make
    for one in opened:
        one.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nobody_waits_but_for_the_one_before(writer, made, tmp_path):
    mine, release, order = writer(), threading.Event(), []
    mine.put(partial(made, 1), lambda path: (order.append(path.name), release.wait(30)))
    second = threading.Thread(target=lambda: mine.put(partial(made, 2), lambda path: order.append(path.name)))
    second.start()
    second.join(0.5)
    assert second.is_alive()  # one in flight
    release.set()
    second.join(30)
    outcome = mine.wait()
    assert order == ["model_epoch_001", "model_epoch_002"]  # told once committed, each
    assert (outcome.newest, outcome.step, outcome.failures) == (tmp_path / "run" / "model_epoch_002", 2, 0)
    assert (tmp_path / "run" / "model_latest").resolve().name == "model_epoch_002"


def test_what_is_told_is_whole(writer, made):
    found = []
    mine = writer()
    mine.put(partial(made, 1), lambda path: found.append(verified_state(path)))
    mine.wait()
    assert found == [RunState(1)]


def test_nothing_goes_before_the_new_one_is_committed(writer, made, tmp_path):
    mine, seen = writer(keep_last=1), []
    for step in (1, 2, 3):
        mine.put(partial(made, step), lambda path: seen.append(names(path.parent)))
    mine.wait()
    assert seen[2] == ["model_epoch_002", "model_epoch_003", "model_latest"]
    assert names(tmp_path / "run") == ["model_epoch_003", "model_latest"]


def test_the_best_stays_and_is_known_to_the_next_start(writer, made, tmp_path):
    mine = writer(keep_last=1, keep_best=1)
    for step, score in ((1, 0.2), (2, 0.8), (3, 0.5)):
        mine.put(partial(made, step), lambda path: None)
        mine.score(mine.wait().newest, {"knn/top1": score})
    mine.wait()
    assert names(tmp_path / "run") == ["model_epoch_002", "model_epoch_003", "model_latest"]
    again = writer(keep_last=1, keep_best=1)
    again.put(partial(made, 4), lambda path: None)
    again.wait()
    assert names(tmp_path / "run") == ["model_epoch_002", "model_epoch_004", "model_latest"]
    assert newest(tmp_path / "run")[0].name == "model_epoch_004"  # a score beside it makes none less whole


def test_a_limit_on_files_is_survived(writer, made, tmp_path):
    mine = writer()
    mine.put(partial(made, 1), lambda path: None)
    mine.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        mine.put(partial(made, 2, 2**19), lambda path: pytest.fail("it is not committed"))
        outcome = mine.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (outcome.newest.name, outcome.failures, outcome.reason) == ("model_epoch_001", 1, "File too large")
    assert len(mine.said) == 1 and "model_epoch_002 could not be written: File too large" in mine.said[0]
    assert names(tmp_path / "run") == ["model_epoch_001", "model_latest"]
    assert newest(tmp_path / "run")[1].global_step == 1
    mine.put(partial(made, 3, 2**19), lambda path: None)
    assert (mine.wait().failures, mine.wait().step) == (0, 3)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes."""
    folder = tmp_path / "run"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]).returncode:
        pytest.skip("only root may mount a file system of its own")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_survived(writer, made, small_disk):
    mine = writer(keep_last=1)
    mine.put(partial(made, 1), lambda path: None)
    mine.wait()
    for count in (1, 2):
        mine.put(partial(made, 2, 2**19), lambda path: pytest.fail("it is not committed"))
        assert mine.wait().failures == count
        assert "No space left on device" in mine.said[-1] and "newest here is model_epoch_001" in mine.said[-1]
        assert names(small_disk) == ["model_epoch_001", "model_latest"]  # nothing is left of what did not fit
    assert newest(small_disk)[1].global_step == 1
    mine.put(partial(made, 3), lambda path: None)
    assert mine.wait().failures == 0 and names(small_disk) == ["model_epoch_003", "model_latest"]


def test_a_mistake_of_ours_is_no_full_disk(writer, made):
    mine = writer()
    bad = made(1)
    bad.files["optimizer.safetensors"][0]["x"] = torch.zeros(2, dtype=torch.complex64)
    mine.put(lambda: bad, lambda path: None)
    outcome = mine.wait()
    assert outcome.fatal.startswith("KeyError") and outcome.newest is None and outcome.failures == 0


def test_a_writer_that_is_killed(made, tmp_path):
    commit(tmp_path, made(1))
    files = {f"{i}.safetensors": ({"x": torch.zeros(2**20)}, {}) for i in range(200)}
    big = Snapshot("model_epoch_002", files, '{"global_step": 2}')
    writer = multiprocessing.get_context("fork").Process(target=commit, args=(tmp_path, big))
    writer.start()
    aside = tmp_path / ".model_epoch_002.partial"
    while not aside.is_dir() or len(names(aside)) < 3:
        assert writer.is_alive()
        time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert names(tmp_path) == [aside.name, "model_epoch_001"]
    assert newest(tmp_path)[1].global_step == 1
    clear_left_behind(tmp_path)
    assert names(tmp_path) == ["model_epoch_001"]


def test_killed_between_two_renames(made, tmp_path):
    whole = commit(tmp_path, made(1))
    whole.rename(tmp_path / ".model_epoch_001.old")
    (tmp_path / ".model_epoch_003.gone").mkdir()
    commit(tmp_path, made(2)).rename(tmp_path / ".model_epoch_001.partial")
    CheckpointWriter(tmp_path, TrainConfig()).close()
    assert names(tmp_path) == ["model_epoch_001"] and newest(tmp_path)[1].global_step == 1


def test_the_old_one_of_a_name_outlives_a_failure(made, tmp_path):
    commit(tmp_path, made(1))
    bad = made(1)
    bad.files["optimizer.safetensors"][0]["x"] = torch.zeros(2, dtype=torch.complex64)
    with pytest.raises(KeyError):
        commit(tmp_path, bad)
    assert names(tmp_path) == ["model_epoch_001"] and newest(tmp_path)[1].global_step == 1
