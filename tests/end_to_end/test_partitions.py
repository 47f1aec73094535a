"""Runs whose teachers see a share of every global batch."""

from __future__ import annotations

import math

import pytest
import safetensors.torch

from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.teachers.serving.client import InlineTeacher
from radioplat.tracking.follow import StepEvent
from radioplat.training.checkpoints.checkpoint import verified_state

STEPS, G = 4, 4
QUARTERS = [{"share": 0.25, "teachers": ["lite0"]}, {"share": 0.75, "teachers": ["vit"]}]


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
    every = {"checkpoint_interval": 2, "checkpoint_interval_unit": "step"}
    spec = short(tmp_path / "whole", QUARTERS, **every)
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


def test_one_partition_of_everything_is_none(short, distil, tmp_path):
    whole = [{"share": 1.0, "teachers": ["lite0", "vit"]}]
    none, one = (distil(short(tmp_path / str(len(part)), part)) for part in ([], whole))
    assert len(one.losses) == STEPS and one.losses == none.losses
    assert [e.metrics["loss/vit/spatial"] for e in steps(one)] == [e.metrics["loss/vit/spatial"] for e in steps(none)]


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
