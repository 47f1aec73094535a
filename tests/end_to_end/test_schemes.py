"""Schemes and MESA in whole runs: what is logged, what plan says, and that a run broken off goes on as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from radioplat.design.views import run_views
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import OPTIMIZER

MEAN = {
    "name": "mean",
    "source": "ema",
    "view": "shifted",
    "mode": "combo",
    "loss_type": "MSE",
    "summary_loss_type": "cosine",
}
DEEP = {"name": "deep", "source": "deeper"}
BINDINGS = [
    {"teacher": "deep", "teacher_module_name": "blocks.1", "student_module_name": "blocks.0", "criterion": "CS"},
    {"teacher": "mean", "teacher_module_name": "blocks.1", "student_module_name": "blocks.1", "criterion": "MSE"},
]
PEER = {
    "name": "peer",
    "source": "peer",
    "model": {"backbone": {"type": "test_resnet", "output_dim": [4]}},
    "mode": "logits",
    "loss_type": "KL",
    "extra_losses": [{"type": "MSE", "kind": "spatial", "weight": 0.1}],
}
EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")


@pytest.fixture
def with_teachers(make_spec):
    """with_teachers(results_dir, scheme, *teachers, **distill) -> a spec: the tiny ViT and these, one epoch of 4."""

    def make(folder: Path, scheme: str, *teachers: dict, train: dict | None = None, **distill) -> dict:
        train = {"num_epochs": 1, "enable_ema": True, "ema_decay": 0.5} | (train or {})
        spec = make_spec(folder, {"train": train, "distill": {"scheme": scheme, **distill}})
        spec["distill"]["teacher"] = [spec["distill"]["teacher"][1], *teachers]
        spec["teachers"] = {"vit": {"num_cpus": 0.5}}
        return spec

    return make


def break_off(trail, into: Path) -> str:
    """The run as it stood after two steps; the override that goes on from there."""
    shutil.copytree(trail.folder, into / "distill", symlinks=True)
    shutil.rmtree(into / "distill" / "model_epoch_001")
    TaskFolder(into, "distill").point_latest("model_epoch_000_step_00002")
    return f"results_dir={into}"


def logged(trail) -> list[dict]:
    return [line["kpi"] for line in read_status(trail.folder / "status.json") if "max_step" in line]


@pytest.mark.parametrize(
    "train",
    [
        pytest.param({}, id="0", marks=pytest.mark.proof),
        pytest.param({"zero_stage": 3}, id="3", marks=pytest.mark.proof),
        pytest.param({"zero_stage": 2, "precision": "bf16"}, id="bf16-2"),
    ],
)
def test_a_student_that_teaches_itself_goes_on_as_it_was(with_teachers, distil, tmp_path, train):
    mesa = {"weight": 0.5, "start_step": 2}
    spec = with_teachers(tmp_path / "a", "self", MEAN, DEEP, train=train, bindings=BINDINGS, mesa=mesa)
    quiet = distil(spec, *EVERY_SECOND)
    seen = logged(quiet)
    assert ["loss/mesa" in kpi for kpi in seen] == [False, False, True, True]
    terms = {"vit/spatial", "mean/summary", "mean/spatial", "mean/binding_1", "deep/binding_0"}
    assert {f"loss/{term}" for term in terms} <= set(seen[0]) and seen[2]["loss/mesa"] > 0
    assert set(quiet.result.teacher_costs.teachers) == {"vit"}, "the student pays nobody for itself"
    resumed = distil(spec, *EVERY_SECOND, break_off(quiet, tmp_path / "b"))
    assert resumed.result.resumed_from == 2
    again = logged(resumed)[-2:]
    for before, after in zip(seen[2:], again, strict=True):
        for name in (name for name in before if name.startswith("loss")):
            assert after[name] == pytest.approx(before[name], rel=1e-6), name
    average = safetensors.torch.load_file(resumed.result.checkpoint / EMA_FILE)
    for name, value in safetensors.torch.load_file(quiet.result.checkpoint / EMA_FILE).items():
        torch.testing.assert_close(average[name], value, rtol=1e-5, atol=1e-7, msg=name)


def test_plan_tells_who_teaches_from_inside(with_teachers, tmp_path):
    spec = with_teachers(tmp_path, "self", MEAN, DEEP, bindings=BINDINGS, mesa={"weight": 0.5, "start_step": 9})
    spec["train"]["max_steps"] = 4
    found = plan(load_spec(spec))
    assert not found.problems, found.problems
    lines = {line.name: line for line in found.models}
    assert list(lines) == ["student", "vit", "mean", "deep"]
    assert lines["mean"].placement == lines["deep"].placement == "inside each worker"
    assert lines["mean"].memory == 4 * lines["mean"].parameters > 0 == lines["deep"].memory
    assert found.facts["scheme"] == "self: mean (the student's average), deep (the student itself)"
    assert found.facts["mesa"] == "weight 0.5 from step 9, the average sees another crop"
    assert any("distill.mesa.start_step is 9" in warning for warning in found.warnings)
    alone = plan(load_spec(with_teachers(tmp_path, "offline", mesa={"weight": 0.5})))
    assert [(line.name, line.role) for line in alone.models][-1] == ("mesa", "the student's average")
    spec["distill"]["teacher"] = [{**MEAN, "view": "same"}]
    spec["distill"]["bindings"], spec["teachers"] = [], {}
    found = plan(load_spec(spec))
    assert not found.problems and any("is the only teacher" in warning for warning in found.warnings)


@pytest.mark.proof
def test_a_student_alone_with_its_average_trains_and_is_evaluated(with_teachers, distil, tmp_path):
    spec = with_teachers(tmp_path, "self", MEAN, mesa={"weight": 1.0})
    spec["distill"]["teacher"], spec["teachers"] = [{**MEAN, "view": "same"}], {}
    run = distil(spec)
    assert len(run.losses) == 4 and all(0 < loss < 1e3 for loss in run.losses.values())
    assert not evaluate(load_spec(spec)).fidelity, "there is no teacher to be faithful to"


def test_reverse_runs_as_offline_and_warns_of_a_large_teacher(with_teachers, make_spec, tmp_path):
    spec = with_teachers(tmp_path, "reverse")
    found = plan(load_spec(spec))
    assert not found.problems and "runs as offline does" in found.facts["scheme"]
    (warning,) = (warning for warning in found.warnings if "scheme reverse" in warning)
    assert "distill.teacher[0]: scheme reverse, and the teacher (0.30 M parameters) is not smaller" in warning
    spec["model"]["backbone"]["kwargs"] = {"embed_dim": 192, "depth": 2, "num_heads": 3}
    assert not any("reverse" in warning for warning in plan(load_spec(spec)).warnings)


@pytest.mark.parametrize("train", [{}, pytest.param({"zero_stage": 3}, marks=pytest.mark.proof)], ids=["0", "3"])
def test_a_peer_trains_with_the_student_and_goes_on_as_it_was(with_teachers, distil, tmp_path, train):
    spec = with_teachers(tmp_path / "a", "online", PEER, train=train, alpha=0.5)
    quiet = distil(spec, *EVERY_SECOND)
    seen = logged(quiet)
    terms = {"logits", "labels", "spatial_MSE", "peer_logits", "peer_labels", "peer_spatial_MSE"}
    assert {f"loss/peer/{term}" for term in terms} <= set(seen[0])
    states = [
        safetensors.torch.load_file(quiet.folder / name / OPTIMIZER)
        for name in ("model_epoch_000_step_00002", "model_epoch_001")
    ]
    mine = {name for name in states[1] if name.startswith("peers.peer.") and name.endswith(("weight", "running_mean"))}
    assert len(mine) > 20 and all(not torch.equal(states[0][name], states[1][name]) for name in mine)
    for file in ("student.safetensors", "heads.safetensors", EMA_FILE):
        assert not any("peers." in name for name in safetensors.torch.load_file(quiet.result.checkpoint / file))
    resumed = distil(spec, *EVERY_SECOND, break_off(quiet, tmp_path / "b"))
    for before, after in zip(seen[2:], logged(resumed)[-2:], strict=True):
        for name in (name for name in before if name.startswith("loss")):
            assert after[name] == pytest.approx(before[name], rel=1e-6), name
    found = plan(load_spec(spec))
    assert not found.problems and found.facts["scheme"] == "online: peer (peer)"
    if not train:  # a proof: evaluating takes its time
        assert all(set(by_teacher) == {"vit"} for by_teacher in evaluate(load_spec(spec)).fidelity.values())


def test_views_of_the_average(with_teachers, tmp_path):
    from radioplat.design.models import design_models

    def views(**changes):
        spec = load_spec(with_teachers(tmp_path, "self", MEAN, **changes))
        models = design_models(spec, "distill")
        return {v.name: v for v in run_views(spec, models.teachers, models.infos, models.student_stride)}

    found = views()
    assert set(found) == {"64", "average"} and found["average"].shifted and found["average"].patch == 16
    assert not found["64"].shifted


@pytest.mark.proof
def test_an_ensemble_teaches_as_one(with_teachers, distil, weights, tmp_path):
    """Two equal members are the one that they are; another second member is another teacher."""
    torch.manual_seed(7)
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file(TimmBackbone("test_vit", num_classes=0, img_size=64).model.state_dict(), other)

    def run(name: str, *paths: Path):
        spec = with_teachers(tmp_path / name, "offline", train={"max_steps": 2})
        spec["feature_cache"] = {"dir": str(tmp_path / "cache")}
        teacher = spec["distill"]["teacher"][0]
        del teacher["pretrained_teacher_model_path"]
        teacher |= (
            {"ensemble": list(map(str, paths))} if len(paths) > 1 else {"pretrained_teacher_model_path": str(paths[0])}
        )
        return spec, distil(spec)

    _, one = run("one", weights["vit"])
    _, same = run("same", weights["vit"], weights["vit"])
    spec, two = run("two", weights["vit"], other)
    assert same.losses == one.losses and two.losses != one.losses
    hits = [kpi["cache/vit/hits"] for trail in (one, same, two) for kpi in logged(trail)]
    assert hits == [0] * 6, "a cache must not take one for another"
    lines = {line.name: line for line in plan(load_spec(spec)).models}
    single = sum(t.numel() for t in safetensors.torch.load_file(other).values())
    assert lines["vit"].parameters == 2 * single and lines["vit"].detail.endswith("the mean of 2")
