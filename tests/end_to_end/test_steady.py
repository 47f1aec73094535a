"""Loss spikes, lack of memory, hangs, and the account of a run: one process, real runs, broken in the middle."""

from __future__ import annotations

import json
import os
import shutil
import time
import weakref
from pathlib import Path

import pytest
import safetensors.torch
import torch
from forked import Forked, run_code

from radioplat.cli import main as cli
from radioplat.data.ledger.ledger import read_rejected
from radioplat.errors import TrainingError
from radioplat.objectives.distill import DistillObjective
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tracking.attempts.goodput import Goodput
from radioplat.tracking.attempts.logs import attempt_folder, last_words
from radioplat.tracking.status import read_status
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import verified_state
from radioplat.training.loop.trainer import Trainer
from radioplat.training.watch.watchdog import HANG_EXIT

EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")
SPIKES = ("train.spike.factor=3", "train.spike.window=2")
PIECES = 3  # micro-batches of a step


def jump(monkeypatch, step: int, factor: float) -> None:
    """The losses of the last micro-batch of ``step``, counted by forwards, are ``factor`` times what they are."""
    forward, calls = DistillObjective.forward, [0]

    def jumping(self, batch):
        losses = forward(self, batch)
        calls[0] += 1
        here = calls[0] == PIECES * (step + 1)
        return {name: value * factor for name, value in losses.items()} if here else losses

    monkeypatch.setattr(DistillObjective, "forward", jumping)


def messages(folder: Path) -> str:
    return "\n".join(line["message"] for line in read_status(folder / "status.json"))


@pytest.mark.parametrize("engine", ["deepspeed", pytest.param("ddp", marks=pytest.mark.proof)])
def test_a_roll_back_frees_the_engine_before_it_builds_the_next(make_spec, distil, tmp_path, monkeypatch, engine):
    held: list[weakref.ref] = []
    alive: list[int] = []
    build = Trainer.build_engine

    def counted(self) -> None:
        alive.append(sum(ref() is not None for ref in held))
        build(self)
        held.extend(weakref.ref(master) for master in self.engine.masters())

    monkeypatch.setattr(Trainer, "build_engine", counted)
    jump(monkeypatch, 5, 100.0)
    distil(make_spec(tmp_path), *EVERY_SECOND, *SPIKES, "train.spike.action=rollback", f"train.engine={engine}")
    assert alive == [0, 0] and held


def test_a_jump_is_rolled_back_to_the_last_checkpoint_and_its_span_left_out(
    make_spec, distil, tmp_path, monkeypatch, student_tensors
):
    jump(monkeypatch, 5, 100.0)
    trail = distil(make_spec(tmp_path), *EVERY_SECOND, *SPIKES, "train.spike.action=rollback")
    assert "steps 5 to 6 are taken back and left out (roll-back 1 of 3)" in messages(trail.folder)
    before, after, last = (
        trail.folder / name for name in ("model_epoch_001", "model_epoch_001_step_00006", "model_epoch_002")
    )
    old, new = student_tensors(before), student_tensors(after)
    assert old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)
    moments, kept = (safetensors.torch.load_file(p / "optimizer.safetensors") for p in (before, after))
    assert moments.keys() == kept.keys() and all(torch.equal(moments[n], kept[n]) for n in moments)
    state = verified_state(last)
    assert (state.global_step, state.optimizer_steps, state.rollbacks) == (8, 6, 1)
    proof = prove_run(trail.folder)
    assert proof.holds and proof.unlearned == {"rolled_back": 12}
    assert set(read_rejected(trail.folder / "ledger")["step"].to_pylist()) == {4, 5}
    account = trail.result.account
    assert account.seconds["skipped"] > 0 and account.lost == 0


@pytest.mark.proof
def test_a_jump_in_the_last_step_leaves_the_state_of_the_checkpoint_before_as_the_end(
    make_spec, distil, tmp_path, monkeypatch
):
    jump(monkeypatch, 7, 100.0)
    trail = distil(make_spec(tmp_path), *EVERY_SECOND, *SPIKES, "train.spike.action=rollback")
    state = verified_state(trail.result.checkpoint)
    assert (state.global_step, state.optimizer_steps, trail.result.checkpoint.name) == (8, 6, "model_epoch_002")


@pytest.mark.proof
def test_a_jump_is_left_out_before_the_weights_move_like_a_nan(
    make_spec, distil, tmp_path, monkeypatch, student_tensors
):
    ends = []
    for name, factor in (("jump", 100.0), ("nan", float("nan"))):
        with monkeypatch.context() as patch:
            jump(patch, 5, factor)
            action = ["train.spike.action=skip_step", *SPIKES] if name == "jump" else []
            trail = distil(make_spec(tmp_path / name), *action)
        assert verified_state(trail.result.checkpoint).optimizer_steps == 7
        ends.append(student_tensors(trail.result.checkpoint))
        if name == "jump":
            assert "step 6 was skipped: its loss jumped" in messages(trail.folder)
            assert prove_run(trail.folder).unlearned == {"loss_spike": 6}
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


APPETITE = """
import resource, sys, json, torch, radioplat
from radioplat.objectives.distill import DistillObjective

forward, limited = DistillObjective.forward, []

def hungry(self, batch):
    if not limited:
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 1200 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        limited.append(limit)
    torch.empty(len(batch.weight) * 800 * 2**20, dtype=torch.uint8)
    return forward(self, batch)

DistillObjective.forward = hungry
radioplat.distill(json.loads(sys.argv[1]), ["train.max_steps=3"])
DistillObjective.forward = forward
spec = json.loads(sys.argv[1]) | {"results_dir": sys.argv[2]}
radioplat.distill(spec, ["train.max_steps=3"])
"""


TEACHERS_APPETITE = """
import resource, sys, json, torch, radioplat
from radioplat.cli.main import guarded
from radioplat.teachers.base.teacher import FrozenTeacher

forward, limited = FrozenTeacher.forward, []

def hungry(self, images, wanted):
    if not limited:
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 1200 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        limited.append(limit)
    torch.empty(len(images) * 800 * 2**20, dtype=torch.uint8)
    return forward(self, images, wanted)

FrozenTeacher.forward = hungry
print("status", guarded(lambda: radioplat.distill(json.loads(sys.argv[1]), ["train.max_steps=3", *sys.argv[2:]])))
"""


def losses_of(folder: Path, name: str = "loss") -> dict[int, float]:
    return {n["step"]: n["kpi"][name] for n in read_status(folder / "status.json") if "max_step" in n}


def run_script(script: str, *arguments: str, expect: int = 0, **environment: str) -> str:
    ended = Forked(run_code, script, *arguments, environment=os.environ | environment)
    try:
        assert ended.wait(280) == expect, ended.output[-3000:]
    finally:
        ended.kill()
    return ended.output


MESA = {"train": {"enable_ema": True, "ema_decay": 0.5}, "distill": {"mesa": {"weight": 0.5}}}


@pytest.mark.parametrize("more", [{}, pytest.param(MESA, marks=pytest.mark.proof)], ids=["plain", "mesa"])
def test_a_model_that_takes_more_than_a_real_limit_of_address_space_sees_halves_from_then_on(make_spec, tmp_path, more):
    """The limit is real; the appetite is a tensor beside the model's own, as large as the samples are many. With MESA
    the views of the average overlap the student's, each in its own way."""
    changes = {"model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": 64}}}}
    spec, other = make_spec(tmp_path / "hungry", changes | more), tmp_path / "quiet"
    spec["model"]["backbone"] = changes["model"]["backbone"]
    said = run_script(APPETITE, json.dumps(spec), str(other))
    assert "memory ran out" in said and "in 2 pieces" in said
    folder = tmp_path / "hungry" / "distill"
    assert json.loads((folder / "memory.json").read_text()) == {"batch_size": 2, "halvings": 1, "attempt": 1}
    assert losses_of(folder) == pytest.approx(losses_of(other / "distill"), rel=1e-4) and len(losses_of(folder)) == 3
    if more:
        mesa = losses_of(folder, "loss/mesa")
        assert mesa == pytest.approx(losses_of(other / "distill", "loss/mesa"), rel=1e-4) and min(mesa.values()) > 0
    assert prove_run(folder).holds
    account = Goodput.read(folder)
    assert [(number, cause) for number, cause, _ in account.restarts] == [(1, "oom")]
    assert "global batch of 6 and its samples are the same" in messages(folder)


@pytest.mark.proof
def test_a_teacher_that_takes_more_ends_the_run_and_what_it_says_helps(make_spec, tmp_path):
    spec = json.dumps(make_spec(tmp_path))
    said = " ".join(run_script(TEACHERS_APPETITE, spec).split())
    assert "status 1" in said and "teachers.lite0.max_batch" in said
    assert "teacher lite0 ran out of memory in a forward of 2 images" in said
    folder = tmp_path / "distill"
    assert not (folder / "memory.json").exists(), "the student is not halved for it"
    small = ["teachers.lite0.max_batch=1", "teachers.vit.max_batch=1"]
    assert "status 0" in run_script(TEACHERS_APPETITE, spec, *small)
    assert len(losses_of(folder)) == 3


STUCK = """
import sys, json, threading, radioplat
from radioplat.objectives.distill import DistillObjective

forward, calls = DistillObjective.forward, []

def never_returns(self, batch):
    calls.append(1)
    if len(calls) == 8:
        threading.Event().wait()
    return forward(self, batch)

DistillObjective.forward = never_returns
radioplat.distill(json.loads(sys.argv[1]), sys.argv[2:])
"""


def test_a_run_that_hangs_ends_with_its_stacks_and_diagnose_says_where(make_spec, tmp_path, capsys):
    said = run_script(STUCK, json.dumps(make_spec(tmp_path)), "train.hang_timeout_s=8", *EVERY_SECOND, expect=HANG_EXIT)
    folder = tmp_path / "distill"
    assert "rank 0 hangs and ends" in said and "in phase step at step 2, micro-batch 1" in said
    assert "never_returns" in (attempt_folder(folder, 1) / "stacks_0.txt").read_text()
    assert [w.cause for w in last_words(folder, 1)] == ["hang"]
    assert read_status(folder / "status.json")[-1]["status"] == "FAILURE"
    assert cli.main(["diagnose", str(tmp_path)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("attempt 1: rank 0 hung") and "at step 2" in first
    assert any("model_epoch_000_step_00002, step 2" in line for line in rest)
    assert any("hang_timeout_s" in line for line in rest) and any("Where the time went" in line for line in rest)


def test_a_killed_run_is_told_from_one_that_lives(make_spec, tmp_path):
    script = "import sys, json, radioplat; radioplat.distill(json.loads(sys.argv[1]), ['train.num_epochs=1000'])"
    run = Forked(run_code, script, json.dumps(make_spec(tmp_path)))
    folder = tmp_path / "distill"
    try:
        deadline = time.monotonic() + 120
        while not list(folder.glob("model_epoch_*")) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert diagnose(tmp_path).cause.startswith("no failure: its workers were alive")
    finally:
        run.kill()
    pulse = attempt_folder(folder, 1) / "pulse_0.json"
    os.utime(pulse, (time.time() - 600, time.time() - 600))  # the test does not wait for ten minutes
    found = diagnose(folder)
    assert "ended without a message 10 minutes ago" in found.cause and "Run the command again" in found.advice
    assert any("last complete checkpoint" in line for line in found.evidence)


def test_diagnose_names_term_and_samples_of_a_loss_that_was_not_finite(make_spec, distil, tmp_path):
    with pytest.raises(TrainingError):
        distil(make_spec(tmp_path), "train.non_finite=fail", "train.optim.lr=1e30", "train.clip_grad_norm=0")
    found = diagnose(tmp_path)
    assert "not finite: loss" in found.cause and "\n" not in found.cause
    assert any(line.startswith("sample ") and ".tar " in line for line in found.evidence)
    assert "train.optim.lr" in found.advice


def test_a_resumed_runs_account_goes_on(quiet_run, make_spec, distil, tmp_path):
    assert quiet_run.result.account.lost == 0 and quiet_run.result.account.restarts == []
    copy = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, copy, symlinks=True)
    for name in ("model_epoch_001_step_00006", "model_epoch_002"):
        shutil.rmtree(copy / name)
    prices = ["cluster.cpu_hour_price=36"]
    trail = distil(quiet_run.file, f"results_dir={copy.parent}", *EVERY_SECOND, *prices)
    account = trail.result.account
    first = quiet_run.result.account
    assert account.wall > first.wall and account.seconds["recovery"] > 0
    assert account.replayed == 24 and account.lost == 0 and len(account.restarts) == 1
    assert sum(account.seconds.values()) == pytest.approx(account.wall, rel=1e-6)
    assert account.samples == 48
    assert account.price == pytest.approx(account.wall * os.cpu_count() * 36 / 3600, rel=1e-6)
    steps = [line["kpi"] for line in read_status(trail.folder / "status.json") if "max_step" in line]
    assert {"goodput/useful", "goodput/recovery", "run/restarts", "run/price"} <= steps[-1].keys()
    assert steps[-1]["run/restarts"] == 1
    end = read_status(trail.folder / "status.json")[-1]["kpi"]
    assert end["run/samples_lost"] == 0 and end["run/samples_replayed"] == 24
    assert (attempt_folder(trail.folder, 2) / "driver.log").is_file()


def test_folders_without_a_run_are_refused(tmp_path, capsys):
    assert cli.main(["diagnose", str(tmp_path)]) == 1
    assert "no run has started here" in capsys.readouterr().err
