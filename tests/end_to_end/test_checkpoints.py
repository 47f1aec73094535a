"""A run whose disk fills up, whose store refuses, whose folder is lost: it ends cleanly, and goes on where it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from radioplat.cli import main as cli
from radioplat.data.storage.files import list_files, remove_file
from radioplat.errors import RadioplatError, TrainingError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.attempts.goodput import goodput
from radioplat.tracking.follow import CheckpointEvent
from radioplat.tracking.status import read_status
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import newest, verified_state
from radioplat.training.checkpoints.mirror import Mirror
from radioplat.training.checkpoints.persistence import Persistence

EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")
NAMES = ["model_epoch_000_step_00002", "model_epoch_001", "model_epoch_001_step_00006", "model_epoch_002"]


def warnings(folder: Path) -> list[str]:
    return [line["message"] for line in read_status(folder / "status.json") if line["verbosity"] == "WARNING"]


def same(one: Path, other: Path, student_tensors) -> bool:
    mine, theirs = student_tensors(one), student_tensors(other)
    return set(mine) == set(theirs) and all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_written_at_once_or_behind_the_run_is_the_same(quiet_run, make_spec, distil, student_tensors, tmp_path):
    trail = distil(make_spec(tmp_path), *EVERY_SECOND, "train.async_checkpoint=false", "train.keep_last=2")
    for events in (quiet_run.events, trail.events):
        told = [event for event in events if isinstance(event, CheckpointEvent)]
        assert [(event.step, event.path.name) for event in told] == list(zip((2, 4, 6, 8), NAMES, strict=True))
    assert same(trail.result.checkpoint, quiet_run.result.checkpoint, student_tensors)
    assert sorted(p.name for p in trail.folder.glob("model_*")) == [*NAMES[2:], "model_latest"]
    order = [line.get("checkpoint") or line.get("step") for line in read_status(trail.folder / "status.json")]
    assert order.index(NAMES[0]) < order.index(3)  # on the disk before the next step


@pytest.mark.proof
def test_the_step_after_a_save_and_the_goodput_say_how_long_it_stopped_training(
    make_spec, distil, tmp_path, monkeypatch
):
    def slow(self, *given, save=Persistence.save):
        time.sleep(1.5)
        return save(self, *given)

    monkeypatch.setattr(Persistence, "save", slow)
    folder = distil(make_spec(tmp_path), *EVERY_SECOND, "train.max_steps=4").folder
    kpi = {line["step"]: line["kpi"] for line in read_status(folder / "status.json") if "max_step" in line}
    assert kpi[3]["seconds/step"] > 1.5 and kpi[3]["images_per_s"] == pytest.approx(6 / kpi[3]["seconds/step"])
    assert goodput(folder).seconds["checkpoint"] >= 2 * 1.5


@pytest.fixture
def small_disk(tmp_path):
    """small_disk(megabytes) -> a folder that holds no more; called again, it changes that."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def size(megabytes: float) -> Path:
        how = f"size={int(megabytes * 1024)}k" + (",remount" if os.path.ismount(folder) else "")
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(folder)]).returncode:
            pytest.skip("only root may mount a file system of its own")
        return folder

    yield size
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(quiet_run, make_spec, distil, small_disk, student_tensors, tmp_path, capfd):
    size = sum(f.stat().st_size for f in quiet_run.result.checkpoint.iterdir()) / 2**20
    spec = make_spec(small_disk(1.5 * size + 0.3), {"dataset": {"index_dir": str(tmp_path / "index")}})
    few = "train.max_checkpoint_failures=1"
    with pytest.raises(TrainingError, match="2 checkpoints in a row .*No space left.*model_epoch_000_step_00002"):
        distil(spec, *EVERY_SECOND, few)
    folder = Path(spec["results_dir"]) / "distill"
    assert [p.name for p in folder.glob("*model_epoch*")] == NAMES[:1] and newest(folder)[1].global_step == 2
    assert sum("No space left" in line and NAMES[0] in line for line in warnings(folder)) == 2
    assert "No space left" in capfd.readouterr().err
    assert read_status(folder / "status.json")[-1]["status"] == "FAILURE"
    small_disk(10 * size + 5)
    trail = distil(spec, *EVERY_SECOND, few)
    assert trail.result.resumed_from == 2
    assert same(trail.result.checkpoint, quiet_run.result.checkpoint, student_tensors)
    assert cli.main(["ledger", str(folder)]) == 0


def test_a_checkpoint_when_the_last_one_is_old(make_spec, distil, tmp_path):
    """After each step here; without it there would be one, after the epoch's four steps."""
    trail = distil(make_spec(tmp_path / "run"), "train.checkpoint_minutes=0.0001", "train.max_steps=4")
    messages = [line["message"] for line in read_status(trail.folder / "status.json")]
    names = [*(f"model_epoch_000_step_0000{step}" for step in (1, 2, 3)), "model_epoch_001"]
    assert [line for line in messages if line.startswith("checkpoint ")] == [f"checkpoint {name}" for name in names]


def test_a_lost_folder_goes_on_from_the_store(quiet_run, make_spec, distil, s3_store, student_tensors, tmp_path):
    there = f"train.checkpoint_dir=s3://kept/{tmp_path.name}"
    spec = make_spec(tmp_path / "run")
    assert plan(load_spec(spec, [there])).problems == []
    first = distil(spec, *EVERY_SECOND, there)
    mirror = Mirror(f"s3://kept/{tmp_path.name}/distill")
    assert [found.step for _, found in sorted(mirror.standings().items())] == [2, 4, 6, 8]
    assert sorted(p.name for p in first.folder.glob("model_*")) == [NAMES[3], "model_latest"]
    shutil.rmtree(first.folder)
    for name in NAMES[2:]:  # as if it had been lost in the middle
        mirror._remove_folder(mirror.find(name).rpartition("/")[2])
    again = distil(spec, *EVERY_SECOND, there)
    assert again.result.resumed_from == 4 and f"goes on from {NAMES[1]} at step 4" in again.lines[0]
    assert same(again.result.checkpoint, quiet_run.result.checkpoint, student_tensors)
    assert f"the ledger was copied from s3://kept/{tmp_path.name}" in again.lines[1]
    proof = prove_run(again.folder)
    assert proof.holds and (proof.first_step, proof.expected, proof.replayed) == (0, 48, 24)
    # A ledger that is lost in both places: the next one proves what was run since, and says so.
    shutil.rmtree(again.folder)
    for name, _ in list_files(f"{mirror.folder}/ledger", lambda _: True):
        remove_file(f"{mirror.folder}/ledger/{name}")
    for name in NAMES[2:]:
        mirror._remove_folder(mirror.find(name).rpartition("/")[2])
    again = distil(spec, *EVERY_SECOND, there)
    proof = prove_run(again.folder)
    assert proof.holds and (proof.first_step, proof.expected) == (4, 24) and again.result.account.lost == 0
    assert "the ledger of steps 0 to 4 is lost" in "".join(
        line["message"] for line in read_status(again.folder / "status.json")
    )
    # By its name, in another folder.
    named = f"train.resume_training_checkpoint_path=s3://kept/{tmp_path.name}/distill/{NAMES[1]}"
    other = distil(make_spec(tmp_path / "other"), *EVERY_SECOND, named)
    assert other.result.resumed_from == 4
    assert same(other.result.checkpoint, quiet_run.result.checkpoint, student_tensors)


@pytest.mark.proof
def test_a_lost_folder_goes_on_in_the_number_format_that_it_began_with(make_spec, distil, s3_store, tmp_path):
    there = f"train.checkpoint_dir=s3://kept/{tmp_path.name}"
    spec = make_spec(tmp_path / "run")
    del spec["train"]["precision"]
    first = distil(spec, there, "train.max_steps=4", "train.precision=bf16", "train.tf32=false")
    shutil.rmtree(first.folder)
    named = f"train.resume_training_checkpoint_path=s3://kept/{tmp_path.name}/distill/{NAMES[1]}"
    for again in (distil(spec, there), distil(spec | {"results_dir": str(tmp_path / "other")}, named)):
        kept = load_spec(again.folder / "experiment.yaml").train
        assert again.result.resumed_from == 4 and (kept.precision.value, kept.tf32) == ("bf16", False)
        if not torch.cuda.is_available():  # there bf16 is what a new run gets too
            assert any("train.precision=bf16 (as this run began)" in line for line in again.lines)


@pytest.mark.proof
def test_a_store_that_refuses(make_spec, distil, s3_store, tmp_path, capfd):
    there = f"train.checkpoint_dir=s3://kept/{tmp_path.name}"
    spec = make_spec(tmp_path / "run")
    s3_store.refuses = lambda method, path: method in ("PUT", "POST")
    problems = plan(load_spec(spec, [there])).problems
    assert [problem.where for problem in problems] == ["train.checkpoint_dir"]
    with pytest.raises(RadioplatError, match="train.checkpoint_dir: cannot be written"):
        distil(spec, there)  # before anything starts
    # One that refuses once the run is on its way: all steps are taken, the end says what is missing.
    s3_store.refuses = lambda method, path: method in ("PUT", "POST") and "model_epoch" in path
    with pytest.raises(TrainingError, match="train.checkpoint_dir: the last checkpoint of the run"):
        distil(spec, *EVERY_SECOND, there, "train.max_checkpoint_failures=9")
    folder = tmp_path / "run" / "distill"
    assert verified_state(folder / NAMES[3]).global_step == 8
    assert len(warnings(folder)) == 4 and "stands in" in capfd.readouterr().err
    s3_store.refuses = lambda method, path: False
    result = distil(spec, *EVERY_SECOND, there).result  # nothing is left to do but to copy it
    assert (result.resumed_from, result.global_step) == (8, 8)
    assert list(Mirror(f"s3://kept/{tmp_path.name}/distill").standings()) == NAMES[3:]


def test_results_on_a_store_are_refused(make_spec, distil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = make_spec("s3://kept/results")
    assert [p.where for p in plan(load_spec(spec)).problems] == ["results_dir"]
    with pytest.raises(RadioplatError, match="results_dir: results need a folder"):
        distil(spec)
    assert list(tmp_path.iterdir()) == []


BLOCKED = """
import sys
for name in ("deepspeed", "ray"):
    sys.modules[name] = None
from pathlib import Path
import torch
from safetensors.torch import load_file
import radioplat
path = Path(sys.argv[1])
for ema in (None, False):
    student = radioplat.load_student(path, ema=ema)
    found = student(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    assert found.summary.isfinite().all() and student.head("vit", found).spatial.isfinite().all()
plain = load_file(path / "student.safetensors") | load_file(path / "heads.safetensors")
moments = load_file(path / "optimizer.safetensors")
trained = {name.removesuffix(".exp_avg") for name in moments if name.endswith(".exp_avg")}
assert trained and trained <= set(plain)
for name in trained:
    for moment in ("exp_avg", "exp_avg_sq"):
        assert moments[f"{name}.{moment}"].shape == plain[name].shape and plain[name].dtype is torch.float32
from radioplat.training.checkpoints.checkpoint import newest, read_checkpoint
assert newest(path.parent)[0] == path and len(read_checkpoint(path)) == 2
assert not any(name.split(".")[0] in ("deepspeed", "ray") for name, held in sys.modules.items() if held)
print("opened", len(trained))
"""


def test_a_checkpoint_opens_without_deepspeed_and_ray(quiet_run):
    command = [sys.executable, "-c", BLOCKED, str(quiet_run.result.checkpoint)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout.split()[1]) > 20
