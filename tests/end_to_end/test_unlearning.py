"""A student that begins with a teacher's own weights: `plan` and the run warn of what would make it forget them."""

from __future__ import annotations

import pytest

import radioplat
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.status import read_status

HARM = [
    "distill.head_fit.enabled=false",
    "train.optim.head_warmup_epochs=0",
    "dataset.augmentation.mean=[0.485,0.456,0.406]",
    "dataset.augmentation.std=[0.229,0.224,0.225]",
]
FIELDS = ("distill.head_fit.enabled", "model.backbone.student_norm_mean")


def of_student(make_spec, weights, folder, **train):
    spec = make_spec(folder, {"train": train})
    student = {"type": "tf_efficientnet_lite0", "pretrained_backbone_path": str(weights["lite0"])}
    return {**spec, "model": {"backbone": student}}


@pytest.mark.proof
def test_plan_and_the_run_warn_alike_and_not_by_default(make_spec, weights, tmp_path):
    spec = of_student(make_spec, weights, tmp_path, max_steps=1)
    planned = [line for line in plan(load_spec(spec, HARM)).warnings if any(field in line for field in FIELDS)]
    assert len(planned) == 2 and all(field in " ".join(planned) for field in FIELDS)
    heard: list[str] = []
    run = radioplat.distill(spec, HARM, say=heard.append)
    assert [line for line in heard if line in planned] == planned
    logged = {line["message"]: line["verbosity"] for line in read_status(run.folder / "status.json")}
    assert [logged[line] for line in planned] == ["WARNING"] * 2
    # A run that goes on is not warned of what is behind it, and keeps what it was started with.
    again: list[str] = []
    radioplat.distill(spec, [*HARM, "train.max_steps=2"], say=again.append)
    assert any("goes on from" in line for line in again) and not set(planned) & set(again)
    fresh = of_student(make_spec, weights, tmp_path / "fresh", max_steps=1)
    assert not any(field in line for line in plan(load_spec(fresh)).warnings for field in FIELDS)


def test_what_was_decided_is_said_written_and_kept(make_spec, weights, tmp_path):
    spec = of_student(make_spec, weights, tmp_path, max_steps=1)
    del spec["distill"]["mlp_hidden_size"]
    heard: list[str] = []
    run = radioplat.distill(spec, say=heard.append)
    decided = load_spec(run.folder / "experiment.yaml")
    assert decided.distill.use_mlp is False and decided.model.backbone.freeze_norm is True
    assert decided.model.backbone.student_norm_mean == [0.5, 0.5, 0.5]
    (line,) = (line for line in heard if line.startswith("decided for this run: "))
    assert "distill.use_mlp=false (" in line and "student_norm_std=[0.5,0.5,0.5] (" in line
    assert radioplat.load_student(run.checkpoint).architecture.mean == (0.5, 0.5, 0.5)
    again: list[str] = []
    radioplat.distill(spec, ["train.max_steps=2"], say=again.append)
    (line,) = (line for line in again if "goes on from" in line)
    assert "changed in the spec since: train.max_steps: 1 -> 2" in line and "use_mlp" not in line


@pytest.mark.proof
def test_heads_of_a_pretrained_student_are_fitted_and_its_first_loss_is_lower(make_spec, weights, tmp_path):
    def run(name: str, *overrides: str):
        spec = of_student(make_spec, weights, tmp_path / name, max_steps=8)
        facts = plan(load_spec(spec, overrides)).facts
        folder = radioplat.distill(spec, overrides).folder
        return facts, read_status(folder / "status.json")

    facts, lines = run("fitted", "distill.head_fit.images=48")
    assert "by ridge regression on the first 48 images: " in facts["heads fitted"]
    fitted = [line["message"] for line in lines if "was fitted to" in line["message"]]
    assert len(fitted) == 3
    plain_facts, plain_lines = run("random", "distill.head_fit.enabled=false")
    assert "heads fitted" not in plain_facts and not any("was fitted to" in line["message"] for line in plain_lines)
    first, random = (next(line["kpi"]["loss"] for line in log if "loss" in line["kpi"]) for log in (lines, plain_lines))
    assert first < 0.7 * random
