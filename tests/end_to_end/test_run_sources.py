"""A run records the hashes of the weights that it starts from and is taught by, and reads each file once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch

from radioplat.launch import run_sources
from radioplat.launch.run_sources import read_run_sources
from radioplat.tasks.lineage.lineage import lineage
from radioplat.tasks.lineage.node import Kind

ALONE = ("train.checkpoint_interval=1", "train.num_epochs=1")


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_teachers_files_are_recorded_with_their_hashes(quiet_run, weights):
    content = json.loads((quiet_run.folder / "sources.json").read_text())
    assert content["schema"] == 1
    recorded = {entry["teacher"]: entry for entry in content["sources"]}
    assert set(recorded) == {"lite0", "vit"}
    for i, name in enumerate(recorded):
        entry, file = recorded[name], weights[name]
        assert entry["where"] == f"distill.teacher[{i}].pretrained_teacher_model_path"
        assert entry["path"] == str(file) and entry["from_step"] == 0 and entry["problem"] == ""
        assert entry["files"][file.name]["sha256"] == sha256(file)


@pytest.fixture
def own(make_spec, weights, tmp_path):
    """A spec whose ViT teacher has a file of its own, and that file."""
    file = tmp_path / "teacher.safetensors"
    shutil.copyfile(weights["vit"], file)
    spec = make_spec(tmp_path / "results")
    spec["distill"]["teacher"] = [spec["distill"]["teacher"][1] | {"pretrained_teacher_model_path": str(file)}]
    del spec["teachers"]["lite0"]
    return spec, file


def test_a_resume_reads_no_file_again_and_a_changed_one_is_a_second_entry(own, distil, monkeypatch):
    spec, file = own
    folder = distil(spec, *ALONE).folder
    first = read_run_sources(folder)
    read = []
    real = run_sources._sha256
    monkeypatch.setattr(run_sources, "_sha256", lambda path, stop: read.append(path) or real(path, stop))
    longer = ALONE[:1]
    distil(spec, *longer, "train.max_steps=5")
    assert read == [] and read_run_sources(folder) == first
    os.utime(file, ns=(1, 1))  # read again, and the same
    distil(spec, *longer, "train.max_steps=6")
    assert read == [file]
    (same,) = read_run_sources(folder)
    assert same.hashes == first[0].hashes and same.from_step == 0 and same.files["teacher.safetensors"].mtime_ns == 1
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name: tensor * 1.01 for name, tensor in tensors.items()}, file)
    distil(spec, *longer, "train.max_steps=7")
    before, after = read_run_sources(folder)
    assert before == same and (after.from_step, after.hashes) == (6, {file.name: sha256(file)})


def test_a_start_that_was_killed_before_its_hashes_is_completed_by_the_next_one(own, distil):
    spec, file = own
    folder = distil(spec, *ALONE).folder
    record = folder / "sources.json"
    whole = record.read_text()
    content = json.loads(whole)
    content["sources"][0]["files"][file.name]["sha256"] = ""  # as the start leaves it
    record.write_text(json.dumps(content))
    distil(spec, "train.max_steps=5")
    assert record.read_text() == whole
    state = file.stat()
    content["sources"][0]["files"][file.name]["bytes"] -= 1  # another file at that time
    record.write_text(json.dumps(content))
    distil(spec, "train.max_steps=6")
    old, new = read_run_sources(folder)
    assert "changed before its hash was computed" in old.problem and not old.hashes
    assert new.from_step == 5 and new.files[file.name].bytes == state.st_size and new.hashes
    # A run that had finished is not given hashes of files that may have changed since.
    record.unlink()
    distil(spec, "train.max_steps=6")
    assert not record.exists()


def test_a_student_s_start_is_recorded_and_stays_when_the_run_goes_on(quiet_run, make_spec, distil, tmp_path):
    start = quiet_run.result.checkpoint
    spec = make_spec(tmp_path, {"train": {"pretrained_model_path": str(start)}})
    folder = distil(spec, "train.num_epochs=1").folder
    distil(spec, "train.max_steps=5")
    entry = next(entry for entry in read_run_sources(folder) if not entry.teacher)
    assert entry.where == "train.pretrained_model_path" and entry.from_step == 0
    names = ("student.safetensors", "heads.safetensors")
    assert entry.hashes == {name: sha256(start / name) for name in names}


def test_a_run_that_goes_on_on_another_machine_keeps_the_hashes_of_its_teachers(own, distil, tmp_path):
    """The folder is lost, the mirror is not; the teacher of the other machine is another file."""
    spec, file = own
    spec["train"] = {**spec["train"], "checkpoint_dir": str(tmp_path / "mirror")}
    folder = distil(spec, *ALONE).folder
    (first,) = read_run_sources(folder)
    assert json.loads((tmp_path / "mirror" / "distill" / "sources.json").read_text())["sources"]
    shutil.rmtree(folder)
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name: tensor * 1.01 for name, tensor in tensors.items()}, file)
    trail = distil(spec, "train.max_steps=6")
    assert trail.result.resumed_from == 4
    before, after = read_run_sources(folder)
    assert before == first and (after.from_step, after.hashes) == (4, {file.name: sha256(file)})
    traced = lineage(trail.result.checkpoint).artifact
    teachers = [node for node in traced.walk() if node.kind is Kind.teacher]
    assert [node.facts["from_step"] for node in teachers] == [1, 5]
    assert [node.files[0].sha256 for node in teachers] == [first.hashes[file.name], sha256(file)]
    (images,) = (node for node in traced.walk() if node.kind is Kind.images)
    assert images.facts["samples"] == 36


@pytest.mark.proof
def test_a_start_on_another_machine_with_the_same_files_has_one_entry(own, distil, tmp_path):
    spec, file = own
    spec["train"] = {**spec["train"], "checkpoint_dir": str(tmp_path / "mirror")}
    first = read_run_sources(folder := distil(spec, *ALONE).folder)
    shutil.rmtree(folder)
    (tmp_path / "there").mkdir()
    shutil.copy(file, tmp_path / "there" / file.name)
    spec["distill"]["teacher"][0]["pretrained_teacher_model_path"] = str(tmp_path / "there" / file.name)
    distil(spec, "train.max_steps=5")
    (entry,) = read_run_sources(folder)
    assert (entry.hashes, entry.from_step) == (first[0].hashes, 0) and entry.path == str(tmp_path / "there" / file.name)
    # A record that is torn there counts as none.
    shutil.rmtree(folder)
    (tmp_path / "mirror" / "distill" / "sources.json").write_text('{"schema": 1, "sour')
    distil(spec, "train.max_steps=6")
    (entry,) = read_run_sources(folder)
    assert (entry.hashes, entry.from_step) == (first[0].hashes, 5)
