"""A checkpoint is whole or it does not count."""

from __future__ import annotations

import dataclasses
import json
import os
import signal

import pytest
import torch

from radioplat.distill import checkpoint
from radioplat.distill.checkpoint import (
    RunState,
    commit,
    newest,
    read_checkpoint,
    read_losses,
    snapshot,
    verified_state,
)
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student import Student, StudentArchitecture

STATE = RunState(
    global_step=3,
    epoch=1,
    samples_consumed=24,
    optimizer_steps=2,
    order_hash="abc",
    order_fields={"seed": "1"},
    quarantined=["a"],
)


@pytest.fixture(scope="module")
def student() -> Student:
    torch.manual_seed(0)
    return Student(StudentArchitecture("test_efficientnet", heads=(HeadArchitecture("a", 4),)))


@pytest.fixture
def write(student, tmp_path):
    """write(name, step) -> folder of a checkpoint."""

    def make(name: str = "model_epoch_001", step: int = 3):
        moments = {f"{n}.exp_avg": torch.full_like(p, 0.5) for n, p in student.named_parameters()}
        state = dataclasses.replace(STATE, global_step=step)
        return commit(tmp_path, snapshot(name, student, student.state_dict(), moments, state))

    return make


def test_round_trip(write, student, tmp_path):
    folder = write()
    assert folder == tmp_path / "model_epoch_001" and [p.name for p in tmp_path.iterdir()] == [folder.name]
    assert newest(tmp_path) == (folder, STATE) and verified_state(folder) == STATE
    tensors, moments = read_checkpoint(folder)
    assert set(tensors) == set(student.state_dict())
    assert all(torch.equal(tensors[k], v) for k, v in student.state_dict().items())
    assert {k.removesuffix(".exp_avg") for k in moments} == {n for n, _ in student.named_parameters()}
    assert all((m == 0.5).all() for m in moments.values())


def test_statistics_of_losses_are_part_of_it(write, student, tmp_path):
    assert read_losses(write()) == {}
    mine = {"criteria.t/summary.direction": torch.arange(3, dtype=torch.float64) / 7}
    folder = commit(tmp_path, snapshot("model_epoch_002", student, student.state_dict(), {}, STATE, mine))
    found = read_losses(folder)
    assert found.keys() == mine.keys() and all(torch.equal(found[name], value) for name, value in mine.items())
    (folder / checkpoint.LOSSES).unlink()
    assert verified_state(folder) is None


def test_the_newest_by_steps_not_by_name(write, tmp_path):
    write("model_epoch_009", 5)
    last = write("model_epoch_001_step_00090", 90)
    assert newest(tmp_path)[0] == last


def test_written_again_under_one_name(write, tmp_path):
    write(step=3)
    again = write(step=8)
    assert newest(tmp_path) == (again, dataclasses.replace(STATE, global_step=8))
    assert [p.name for p in tmp_path.iterdir()] == [again.name]


FILES = ["student.safetensors", "heads.safetensors", checkpoint.OPTIMIZER, checkpoint.STATE, checkpoint.MANIFEST]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "damage", [lambda d: d[: len(d) // 2], lambda d: b"", flip], ids=["half", "empty", "flipped bit"]
)
def test_a_damaged_one_is_passed_over(file, damage, write, tmp_path):
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    (newer / file).write_bytes(damage((newer / file).read_bytes()))
    assert verified_state(newer) is None
    assert newest(tmp_path)[0] == older


@pytest.fixture
def must_end():
    """A test that still reads after some seconds has failed; it is not waited for."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("still reading"))
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["/dev/zero", "zeros", "pipe", ".", "../pipe"])
def test_a_manifest_that_names_what_is_no_file(name, write, tmp_path, must_end):
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    os.symlink("/dev/zero", newer / "zeros")
    os.mkfifo(newer / "pipe")
    os.mkfifo(tmp_path / "pipe")
    manifest = json.loads((newer / checkpoint.MANIFEST).read_text())
    (newer / checkpoint.MANIFEST).write_text(json.dumps({name: "0" * 64, **manifest}))
    assert newest(tmp_path)[0] == older


@pytest.mark.parametrize("file", [checkpoint.STATE, checkpoint.MANIFEST])
def test_a_pipe_in_place_of_a_file(file, write, tmp_path, must_end):
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    (newer / file).unlink()
    os.mkfifo(newer / file)
    assert newest(tmp_path)[0] == older


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file(file, write, tmp_path):
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    (newer / file).unlink()
    assert newest(tmp_path)[0] == older


@pytest.mark.parametrize("manifest", ["{}", "[]", "3", "null", '{"state.json": 1}'])
def test_a_manifest_that_does_not_cover_the_files(manifest, write, tmp_path):
    (write() / checkpoint.MANIFEST).write_text(manifest)
    assert newest(tmp_path) is None


def seal(folder) -> None:
    """A manifest that is right about what lies there."""
    names = [name for name in FILES if name != checkpoint.MANIFEST]
    (folder / checkpoint.MANIFEST).write_text(json.dumps({n: checkpoint._sha256(folder / n) for n in names}))


@pytest.mark.parametrize("state", ["[]", "{}", '{"schema": 999, "global_step": 7}', '{"schema": 1, "steps": 3}'])
def test_a_state_of_another_form(state, write, tmp_path):
    folder = write()
    (folder / checkpoint.STATE).write_text(state)
    seal(folder)
    assert verified_state(folder) is None and newest(tmp_path) is None


def test_what_is_still_being_written_does_not_count(write, tmp_path):
    done = write("model_epoch_001", 3)
    later = write("model_epoch_002", 6)
    later.rename(tmp_path / ".model_epoch_002.partial")  # killed just before the rename
    assert newest(tmp_path)[0] == done
    assert newest(tmp_path / "nothing") is None
    # The next attempt writes over what was left behind.
    assert newest(tmp_path)[0] != write("model_epoch_002", 6) and newest(tmp_path)[1].global_step == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model_epoch_001", "model_epoch_002"]


def test_no_moments_yet(student, tmp_path):
    folder = commit(tmp_path, snapshot("model_epoch_000", student, student.state_dict(), {}, RunState()))
    assert newest(tmp_path)[0] == folder and read_checkpoint(folder)[1] == {}
