"""A checkpoint is whole or it does not count."""

from __future__ import annotations

import dataclasses
import json
import os
import signal

import pytest
import torch
from checkpoint_files import STATE, seal

from radioplat.data.ledger.lineage import Reached
from radioplat.errors import WeightsError
from radioplat.models.student.checkpoint import load_student
from radioplat.training.checkpoints import checkpoint
from radioplat.training.checkpoints.checkpoint import (
    LOSSES,
    RunState,
    commit,
    newest,
    read_checkpoint,
    read_losses,
    snapshot,
    verified_state,
)


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
    made = snapshot("model_epoch_002", student, student.state_dict(), {}, STATE, {LOSSES: (mine, {})})
    folder = commit(tmp_path, made)
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


def test_all_torn_is_a_question(write, tmp_path):
    for name, step in (("model_epoch_001", 3), ("model_epoch_002", 6)):
        (write(name, step) / "student.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="cannot read these checkpoints: shall the run begin anew") as caught:
        newest(tmp_path)
    assert str(caught.value).count("not whole: student.safetensors is missing or damaged") == 2


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
    """It is never read: a plain name counts as damage, another one as the entry of a version that is not known."""
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    os.symlink("/dev/zero", newer / "zeros")
    os.mkfifo(newer / "pipe")
    os.mkfifo(tmp_path / "pipe")
    manifest = json.loads((newer / checkpoint.MANIFEST).read_text())
    (newer / checkpoint.MANIFEST).write_text(json.dumps({name: "0" * 64, **manifest}))
    if name in ("zeros", "pipe"):
        assert newest(tmp_path)[0] == older
    else:
        with pytest.raises(WeightsError, match="unknown entry"):
            newest(tmp_path)


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
    with pytest.raises(WeightsError, match="(?s)not whole: manifest.json .*begin anew without it"):
        newest(tmp_path)


@pytest.mark.parametrize("name", ["/dev/zero", "../../../../../../../../dev/zero"])
def test_a_manifest_leads_nowhere_else(name, write, tmp_path):
    folder = write()
    seal(folder, **{name: 64 * "0"})
    with pytest.raises(WeightsError, match=f"unknown entry {name}"):
        newest(tmp_path)


@pytest.mark.parametrize("name", ["student.safetensors", "heads.safetensors"])
def test_flipped_weights_are_refused_by_the_file_they_are_in(name, write, tmp_path):
    folder = write()
    load_student(folder)
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1  # the last weight, by 2^-15 of itself: still finite, still the right shape
    (folder / name).write_bytes(content)
    for path in (folder, folder / name) if name == "student.safetensors" else (folder,):
        with pytest.raises(WeightsError, match=f"{name} is not the file that was written") as error:
            load_student(path, "evaluate.checkpoint")
        assert error.value.problems[0].where == "evaluate.checkpoint"
    load_student(folder, verify=False)
    (folder / checkpoint.MANIFEST).write_text("{")
    with pytest.raises(WeightsError, match="manifest.json cannot be read"):
        load_student(folder)
    (folder / checkpoint.MANIFEST).unlink()  # a folder without one, as `save_student` writes it, opens
    load_student(folder)


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


def test_a_state_knows_which_attempts_led_to_it():
    """Not those that began where a later one began, too; and nothing is made up for a run that did not record them."""
    state = RunState()
    for attempt, steps in ((1, 4), (2, 4), (3, 9), (3, 12), (7, 12)):
        state.begin(attempt)
        state.global_step = steps
    assert state.starts == [[1, 0], [3, 4], [7, 12]]
    assert state.reached == Reached(12, 7, ((1, 0), (3, 4), (7, 12)))
    old = RunState(global_step=6, attempt=2)
    old.begin(3)
    assert old.starts == [] and old.attempt == 3
    old.order_from = 6  # another order, or another folder, begins here
    old.begin(4)
    assert old.starts == [[4, 6]]
