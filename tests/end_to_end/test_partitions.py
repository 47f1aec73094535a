"""Runs whose teachers see a share of every global batch."""

from __future__ import annotations

import math
import signal
import subprocess
import sys

import pytest
import safetensors.torch
import yaml

from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.teachers.serving.client import InlineTeacher
from radioplat.tracking.follow import StepEvent
from radioplat.training.checkpoints.checkpoint import verified_state

STEPS, G = 4, 4
QUARTERS = [{"share": 0.25, "teachers": ["lite0"]}, {"share": 0.75, "teachers": ["vit"]}]
EVERY_SECOND = {"checkpoint_interval": 2, "checkpoint_interval_unit": "step"}
DIE = """
import os, signal, sys
import radioplat
from radioplat.tracking.follow import StepEvent

def look(event):
    if isinstance(event, StepEvent) and event.step == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

radioplat.distill(sys.argv[1], callbacks=[look], say=print)
"""


@pytest.fixture
def asked(monkeypatch):
    """Micro-batches that each teacher was asked for."""
    found: dict[str, list[int]] = {}
    submit = InlineTeacher.submit

    def noted(self, shared, micro_batch):
        found.setdefault(self.name, []).append(micro_batch)
        return submit(self, shared, micro_batch)

    monkeypatch.setattr(InlineTeacher, "submit", noted)
    return found


@pytest.fixture
def shown(monkeypatch):
    """(teacher, side of its images) of each micro-batch that a teacher was asked for."""
    found: dict[int, tuple[str, int]] = {}
    submit = InlineTeacher.submit

    def noted(self, shared, micro_batch):
        assert micro_batch not in found and shared.shape[2] == shared.shape[3]
        found[micro_batch] = self.name, shared.shape[3]
        return submit(self, shared, micro_batch)

    monkeypatch.setattr(InlineTeacher, "submit", noted)
    return found


@pytest.fixture
def short(make_spec):
    """short(results_dir, partitions, **train): a spec for four steps of four micro-batches."""

    def make(results_dir, partitions: list[dict], **train) -> dict:
        spec = make_spec(results_dir, {"train": {"global_batch_size": 2 * G, "max_steps": STEPS, **train}})
        spec["distill"]["partitions"] = partitions
        return spec

    return make


def steps(trail) -> list[StepEvent]:
    return [event for event in trail.events if isinstance(event, StepEvent)]


def test_each_teacher_is_asked_for_its_share_and_goes_on_with_it(short, distil, asked, tmp_path):
    spec = short(tmp_path / "whole", QUARTERS, **EVERY_SECOND)
    spec["distill"]["target_norm"] = {"type": "standardize", "fit_batches": 2}
    spec["feature_cache"] = {"dir": str(tmp_path / "cache")}
    fact = plan(load_spec(spec)).facts["partitions"]
    assert fact == "of the 4 micro-batches of a step 1 seen by lite0; 3 seen by vit"
    trail = distil(spec)
    whole = {name: set(micro_batches) for name, micro_batches in asked.items()}
    assert len(asked["lite0"]) == STEPS and len(asked["vit"]) == 3 * STEPS
    assert whole["lite0"] | whole["vit"] == set(range(G * STEPS)) and not whole["lite0"] & whole["vit"]
    assert [micro_batch // G for micro_batch in asked["lite0"]] == list(range(STEPS))
    assert len(steps(trail)) == STEPS
    for event in steps(trail):
        terms = {name: value for name, value in event.metrics.items() if name.startswith("loss/")}
        assert terms.keys() == {"loss/lite0/summary", "loss/lite0/spatial", "loss/vit/spatial"}
        assert all(math.isfinite(value) and value > 0 for value in terms.values())
        assert event.metrics["loss"] == pytest.approx(sum(terms.values()), rel=1e-5)
        assert {f"{kind}/{name}{end}" for name in ("lite0", "vit") for kind, end in (
            ("seconds/teacher", ""), ("cache", "/hits"))} <= event.metrics.keys()  # fmt: skip
    asked.clear()
    start = trail.folder / "model_epoch_000_step_00002"
    again = distil(spec, f"results_dir={tmp_path / 'again'}", "feature_cache.dir=null",
                   f"train.resume_training_checkpoint_path={start}")  # fmt: skip
    assert {name: set(micro_batches) for name, micro_batches in asked.items()} == {
        name: {n for n in micro_batches if n >= 2 * G} for name, micro_batches in whole.items()
    }
    assert again.losses == pytest.approx({step: trail.losses[step] for step in (3, 4)}, rel=1e-6)


@pytest.mark.proof
def test_each_partition_draws_its_sizes_and_draws_them_again_after_a_kill(short, distil, shown, ids_by_step, tmp_path):
    """C-RADIOv4's recipe, small: sizes of one partition for one teacher, larger sizes of another for the other."""
    low = {"share": 0.5, "teachers": ["lite0"], "sizes": {64: 1, 96: 3}}
    partitions = [low, {"share": 0.5, "teachers": ["vit"], "sizes": [128, 160]}]
    spec = short(tmp_path / "whole", partitions, **EVERY_SECOND, max_steps=6)
    fact = plan(load_spec(spec)).facts["partitions"]
    assert "2 at 64 (25%), 96 (75%) px seen by lite0; 2 at 128 (50%), 160 (50%) px seen by vit" in fact
    whole = distil(spec)
    assert sorted(shown) == list(range(6 * G)) and set(shown.values()) == {
        ("lite0", 64), ("lite0", 96), ("vit", 128), ("vit", 160)}  # fmt: skip
    before, ids = dict(shown), ids_by_step(whole.folder)

    killed = tmp_path / "killed.yaml"
    killed.write_text(yaml.safe_dump(spec | {"results_dir": str(tmp_path / "killed")}))
    command = [sys.executable, "-c", DIE, str(killed), "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    shown.clear()
    again = distil(killed)
    # The event of step 3 may reach the callback after step 4 has been saved, or before step 2, whose checkpoint is
    # written behind the next steps: the run goes on from any of them.
    done = again.result.resumed_from
    assert done in (0, 2, 4) and shown == {n: seen for n, seen in before.items() if n >= done * G}
    assert ids_by_step(again.folder) == ids
    assert again.losses == pytest.approx({step: whole.losses[step] for step in range(done + 1, 7)}, rel=1e-6)


@pytest.mark.proof
def test_one_partition_of_everything_is_none(short, distil, tmp_path):
    whole = [{"share": 1.0, "teachers": ["lite0", "vit"]}]
    none, one = (distil(short(tmp_path / str(len(part)), part)) for part in ([], whole))
    assert len(one.losses) == STEPS and one.losses == none.losses
    assert [e.metrics["loss/vit/spatial"] for e in steps(one)] == [e.metrics["loss/vit/spatial"] for e in steps(none)]


@pytest.mark.proof
def test_a_teacher_in_quarantine_leaves_its_share_to_nobody(short, distil, asked, weights, tmp_path):
    tensors = safetensors.torch.load_file(weights["vit"])
    tensors["norm.weight"] = tensors["norm.weight"] + 3e38
    safetensors.torch.save_file(tensors, tmp_path / "vit.safetensors")
    spec = short(tmp_path / "run", QUARTERS, non_finite="quarantine_teacher", zero_stage=2)
    path = tmp_path / "vit.safetensors"
    trail = distil(spec, f"distill.teacher[1].pretrained_teacher_model_path={path}")
    assert verified_state(trail.result.checkpoint).quarantined == ["vit"]
    assert [micro_batch // G for micro_batch in asked["lite0"]] == list(range(STEPS))
    assert all(math.isfinite(event.metrics["loss/lite0/spatial"]) for event in steps(trail)[1:])
    assert all("loss/vit/spatial" not in event.metrics for event in steps(trail)[1:])
