"""Stages, sizes of partitions, mosaics and moved views in real runs of one process, and in the middle of a stage."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
import torch

from radioplat.data.loading.run_data import RunData
from radioplat.data.views.view_plan import Plan
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.follow import StepEvent
from radioplat.tracking.results import TaskFolder
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import verified_state

EVERY_STEP = ("train.checkpoint_interval=1", "train.checkpoint_interval_unit=step")


def metrics_of(trail) -> dict[int, dict[str, float]]:
    return {e.step: e.metrics for e in trail.events if isinstance(e, StepEvent)}


def go_on(trail, into, steps: int) -> str:
    """An override that goes on from a copy of a run as it stood after ``steps`` steps."""
    copy = into / "run" / "distill"
    shutil.copytree(trail.folder, copy, symlinks=True)
    for path in TaskFolder(copy.parent, "distill").checkpoints():
        if verified_state(path).global_step > steps:
            shutil.rmtree(path)
    last = max(TaskFolder(copy.parent, "distill").checkpoints(), key=lambda path: verified_state(path).global_step)
    TaskFolder(copy.parent, "distill").point_latest(last.name)
    return f"results_dir={copy.parent}"


def test_stages_and_going_on_in_the_middle_of_one(make_spec, distil, ids_by_step, student_tensors, tmp_path):
    stages = [{"steps": 2, "img_size": 48, "teachers": ["lite0"]}, {"steps": 3, "lr": 5e-4}]
    spec = make_spec(tmp_path / "whole", {"distill": {"stages": stages}, "dataset": {"knn_validation": False}})
    facts = plan(load_spec(spec)).facts
    assert facts["stage 1"] == "steps 0 to 2, 48 px, lr 0.001 (cosine), taught by lite0"
    assert "steps 2 to 5" in facts["stage 2"] and "lite0, vit" in facts["stage 2"]
    assert "5 steps in all" in facts["length"]
    whole = distil(spec, *EVERY_STEP)
    found = metrics_of(whole)
    assert sorted(found) == [1, 2, 3, 4, 5]
    rates = [1e-3 * (1 + math.cos(math.pi * s / 2)) / 2 for s in range(2)]
    rates += [5e-4 * (1 + math.cos(math.pi * s / 3)) / 2 for s in range(3)]
    assert [found[step]["lr"] for step in range(1, 6)] == pytest.approx(rates)
    assert [found[step]["loss/vit/spatial"] > 0 for step in range(1, 6)] == [False, False, True, True, True]
    costs = whole.result.teacher_costs.teachers
    assert (costs["lite0"].images, costs["vit"].images) == (30, 18), "who is away is not asked"
    order = RunData.load(whole.folder / "data", load_spec(spec).dataset.train_dataset).order
    assert ids_by_step(whole.folder) == {s: order.slice(6 * s, 6 * s + 6).sample_id.tolist() for s in range(5)}
    again = distil(spec, *EVERY_STEP, go_on(whole, tmp_path, 3))
    assert again.result.resumed_from == 3 and sorted(again.losses) == [4, 5] and prove_run(again.folder).holds
    for step, loss in again.losses.items():
        assert loss == pytest.approx(whole.losses[step], rel=1e-6), step
    theirs = student_tensors(whole.result.checkpoint)
    for name, value in student_tensors(again.result.checkpoint).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-7, msg=name)


def test_two_sizes_in_one_global_batch_and_a_mosaic(make_spec, distil, tmp_path):
    partitions = [{"share": 1 / 3, "teachers": ["lite0"], "img_size": 96}, {"share": 2 / 3, "teachers": ["vit"]}]
    spec = make_spec(tmp_path, {"distill": {"partitions": partitions}})
    spec["distill"]["teacher"][1] |= {"input_size": 128, "mosaic": 2}
    found = plan(load_spec(spec))
    assert "1 at 96 px seen by lite0; 2 seen by vit" in found.facts["partitions"]
    [vit] = [model for model in found.models if model.name == "vit"]
    assert "128 (2 x 2 of the student's images) px, map 8x8 sent at 8x8" in vit.detail
    trail = distil(spec, "train.max_steps=6", "train.optim.policy=linear")
    losses = [metrics["loss/vit/spatial"] for metrics in metrics_of(trail).values()]
    assert all(map(math.isfinite, trail.losses.values())) and losses[-1] < losses[0]
    costs = trail.result.teacher_costs.teachers
    assert (costs["lite0"].images, costs["vit"].images) == (12, 24)
    assert costs["vit"].bytes == 24 * 2 * 4 * 4 * 64, "a map of its own for each image"
    assert costs["lite0"].bytes == 12 * 2 * (1280 + 3 * 3 * 1280), "of 96 pixels"


@pytest.mark.parametrize("kind", ["shift_equivariance", pytest.param("full_equivariance", marks=pytest.mark.proof)])
def test_every_model_sees_its_own_part_of_the_image(make_spec, distil, tmp_path, kind):
    spec = make_spec(tmp_path / "moved", {"dataset": {"train_dataset": {kind: True}}})
    warned = [line for line in plan(load_spec(spec)).warnings if "never shifted" in line]
    shifts = kind == "shift_equivariance"
    assert [line.split()[2] for line in warned] == ["lite0's"] * shifts, "its stride is 32"
    trail = distil(spec, *EVERY_STEP, "train.max_steps=2")
    found = metrics_of(trail)
    assert all(math.isfinite(v) and v > 0 for m in found.values() for n, v in m.items() if n.startswith("loss"))
    again = distil(spec, *EVERY_STEP, "train.max_steps=2", go_on(trail, tmp_path, 1))
    assert again.losses == pytest.approx({2: trail.losses[2]}, rel=1e-6)


@pytest.mark.proof
def test_corrupting_what_masks_hide_changes_nothing(make_spec, distil, monkeypatch, tmp_path):
    """Images turned by 20 degrees: the corners that show nothing are filled with noise, for student and teachers."""
    turned = {"augmentation": {"random_rotate": {"enable": True, "rotate_probability": 1.0, "angle_list": [20]}}}

    def run(name: str):
        spec = make_spec(tmp_path / name, {"dataset": turned})
        spec["distill"]["teacher"][1] |= {"input_size": 96}
        return distil(spec, "train.max_steps=2", "distill.target_norm.type=standardize")

    plain, clean = run("plain"), Plan.views
    hidden = []

    def noisy(self):
        views = clean(self)
        for view in views.values():
            if view.valid is not None:
                noise = np.random.default_rng(0).integers(0, 256, view.pixels.shape, np.uint8)
                view.pixels[:] = np.where(view.valid[:, None], view.pixels, noise)
                hidden.append((~view.valid).mean())
        return views

    monkeypatch.setattr(Plan, "views", noisy)
    corrupted = run("noisy")
    assert len(hidden) >= 12 and max(hidden) > 0.05
    assert len(plain.losses) == 2 and corrupted.losses == plain.losses
