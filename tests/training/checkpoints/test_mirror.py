"""Checkpoints on an object store: a real S3 server on loopback, which can be stopped and can refuse."""

from __future__ import annotations

import dataclasses
import re
import shutil

import pytest
import torch

from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.manifest import MANIFEST
from radioplat.spec.schema.train import TrainConfig
from radioplat.training.checkpoints.checkpoint import (
    RunState,
    Snapshot,
    commit,
    newest,
    snapshot,
    verified_state,
)
from radioplat.training.checkpoints.mirror import Mirror, download
from radioplat.training.checkpoints.writer import CheckpointWriter

OWNER = "owner.json"


@pytest.fixture
def store(s3_store):
    return s3_store


@pytest.fixture
def keys(store):
    """keys() -> what lies below ``run/`` in the bucket."""

    def read() -> list[str]:
        found = store.client.list_objects_v2(Bucket="kept", Prefix="run/").get("Contents", [])
        return sorted(o["Key"].removeprefix("run/") for o in found if not o["Key"].endswith("/"))

    return read


@pytest.fixture(scope="module")
def student() -> Student:
    torch.manual_seed(0)
    return Student(StudentArchitecture("test_efficientnet", heads=(HeadArchitecture("a", 4),)))


@pytest.fixture
def made(student):
    """made(step) -> a snapshot."""

    def make(step: int) -> Snapshot:
        moments = {"x.exp_avg": torch.full((3,), float(step))}
        return snapshot(f"model_epoch_{step:03d}", student, student.state_dict(), moments, RunState(step))

    return make


@pytest.fixture
def mirror(store, tmp_path):
    """On the store, empty; its bucket is the test's own."""
    return Mirror(f"s3://kept/run/{tmp_path.name}")


@pytest.fixture
def shelf(tmp_path, mirror):
    """shelf(**fields) -> a CheckpointWriter with that mirror; what it warns of is in ``said``."""
    opened = []

    def make(**changes) -> CheckpointWriter:
        (tmp_path / "run").mkdir(exist_ok=True)
        found = CheckpointWriter(tmp_path / "run", dataclasses.replace(TrainConfig(), **changes), mirror)
        found.said = []
        found.warn = found.said.append
        opened.append(found)
        return found

    yield make
    for one in opened:
        one.close()


def put(shelf: CheckpointWriter, made: Snapshot):
    shelf.put(lambda: made, lambda path: None)
    return shelf.wait()


def test_the_manifest_is_written_last_and_what_has_none_is_none(store, mirror, made, keys, tmp_path):
    path = commit(tmp_path, made(1))
    mirror.upload(path)
    assert re.search(f"/model_epoch_001-[0-9a-f]{{8}}/{MANIFEST}$", store.written[-1])
    assert {k.rpartition("/")[2] for k in keys()} == {OWNER, *(file.name for file in path.iterdir())}
    assert {n: s.step for n, s in mirror.standings().items()} == {"model_epoch_001": 1}
    store.client.delete_object(Bucket="kept", Key=store.written[-1].removeprefix("/kept/"))
    assert mirror.standings() == {}
    assert mirror.bring_newer(None, tmp_path / "other") == (None, [])
    mirror.clear_left_behind()
    assert keys() == [f"{tmp_path.name}/{OWNER}"]


def test_a_lost_folder_is_brought_back(mirror, made, student, tmp_path):
    for step in (1, 2):
        mirror.upload(commit(tmp_path / "old", made(step)))
    folder = tmp_path / "new"
    (path, state), unreadable = mirror.bring_newer(None, folder)
    assert path == folder / "model_epoch_002" and state == RunState(2) and newest(folder) == (path, state)
    assert unreadable == []
    old = tmp_path / "old" / path.name
    assert all((path / file.name).read_bytes() == file.read_bytes() for file in old.iterdir())
    assert all(torch.equal(v, student.state_dict()[k]) for k, v in load_student(path).state_dict().items())
    # What is here already, and newer, is left alone.
    later = commit(folder, made(3)), RunState(3)
    assert mirror.bring_newer(later, folder) == (later, [])


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_torn_one_is_passed_over(store, mirror, made, tmp_path, damage):
    for step in (1, 2):
        mirror.upload(commit(tmp_path / "old", made(step)))
    where = mirror.find("model_epoch_002").removeprefix("s3://kept/")
    place = {"Bucket": "kept", "Key": f"{where}/student.safetensors"}
    if damage == "torn":
        store.client.put_object(**place, Body=store.client.get_object(**place)["Body"].read()[:-9])
    else:
        store.client.delete_object(**place)
    (path, state), unreadable = mirror.bring_newer(None, tmp_path / "new")
    assert (path.name, state.global_step) == ("model_epoch_001", 1)
    assert [(one.torn, "student.safetensors is missing" in one.reason) for one in unreadable] == [(True, True)]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["model_epoch_001"]


def test_the_store_keeps_what_the_spec_says_and_the_folder_the_newest(shelf, made, mirror, tmp_path):
    mine = shelf(keep_last=2, keep_best=1)
    for step, score in ((1, 0.9), (2, 0.1), (3, 0.2), (4, 0.3)):
        mine.score(put(mine, made(step)).newest, {"knn/top1": score})
    mine.wait()
    found = mirror.standings()
    assert {n: (s.step, s.score) for n, s in found.items()} == {
        "model_epoch_001": (1, 0.9), "model_epoch_003": (3, 0.2), "model_epoch_004": (4, 0.3),
    }  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["model_epoch_004", "model_latest"]
    assert mine.said == []


def test_a_store_that_denies_costs_no_checkpoint(store, shelf, made, mirror, tmp_path):
    mine = shelf(keep_last=1)
    put(mine, made(1))
    store.refuses = lambda method, path: method in ("PUT", "POST")
    for step in (2, 3):
        outcome = put(mine, made(step))
        assert (outcome.step, outcome.failures) == (step, step - 1)
        assert "stands in" in mine.said[-1] and "alone" in mine.said[-1] and "s3://kept/run" in mine.said[-1]
    assert set(mirror.standings()) == {"model_epoch_001"}
    assert verified_state(tmp_path / "run" / "model_epoch_003") == RunState(3)
    store.refuses = lambda method, path: False
    assert put(mine, made(4)).failures == 0
    assert set(mirror.standings()) == {"model_epoch_004"}
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["model_epoch_004", "model_latest"]


def test_a_store_that_is_gone(store, shelf, made, tmp_path):
    mine = shelf()
    put(mine, made(1))
    store.close()
    outcome = put(mine, made(2))
    assert (outcome.step, outcome.failures, len(mine.said)) == (2, 1, 1)
    assert newest(tmp_path / "run")[1] == RunState(2)
    with pytest.raises(OSError, match="run"):
        Mirror("s3://kept/run").probe()


def test_an_upload_that_breaks_off_leaves_the_older_of_the_same_name_as_it_was(store, mirror, made, keys, tmp_path):
    """Files of two checkpoints under one name must never be taken for one."""
    path = commit(tmp_path, made(1))
    mirror.upload(path)
    store.refuses = lambda method, path: method in ("PUT", "POST") and path.endswith("student.safetensors")
    before = keys()
    with pytest.raises(OSError):
        mirror.upload(path)
    assert keys() == before and download(mirror.find(path.name), tmp_path / "again") == RunState(1)


def test_a_checkpoint_by_its_remote_name(mirror, made, tmp_path):
    mirror.upload(commit(tmp_path, made(1)))
    target = tmp_path / "there" / "model_epoch_001"
    source = mirror.find("model_epoch_001")
    assert download(source, target) == RunState(1) and verified_state(target) == RunState(1)
    stamp = target.stat().st_mtime_ns
    assert download(f"{source}/", target) == RunState(1) and target.stat().st_mtime_ns == stamp
    assert mirror.find("model_epoch_007") is None
    assert download(f"{mirror.folder}/model_epoch_007", tmp_path / "x").torn


def test_a_local_second_home(made, tmp_path):
    mirror = Mirror(str(tmp_path / "nfs"))
    assert mirror.standings() == {}
    mirror.probe()
    (tmp_path / "run").mkdir()
    shelf = CheckpointWriter(tmp_path / "run", dataclasses.replace(TrainConfig(), keep_last=1), mirror)
    for step in (1, 2):
        put(shelf, made(step))
    shelf.close()
    assert [p.name[:15] for p in sorted((tmp_path / "nfs").iterdir())] == ["model_epoch_002", OWNER]
    shutil.rmtree(tmp_path / "run")
    assert mirror.bring_newer(None, tmp_path / "run")[0][1] == RunState(2)
