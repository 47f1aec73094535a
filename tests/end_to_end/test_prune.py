"""A distilled student pruned, judged, retrained against the same teachers, exported: each by what it left."""

from __future__ import annotations

import dataclasses
import json
import re

import onnx
import pytest
import torch

import radioplat
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import EngineError, SpecError, WeightsError
from radioplat.models.weights.model_format import has_average, read_average
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.export.export import export
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.prune.show import show
from radioplat.tracking.status import read_status

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def spec(quiet_run):
    return load_spec(quiet_run.file)


@pytest.fixture(scope="module")
def pruned(spec, tmp_path_factory):
    changes = ("prune.parts=[hidden,heads,width]", "prune.amount=0.25", "prune.blocks=1", "prune.score_batches=2")
    return prune(spec, (*changes, f"prune.results_dir={tmp_path_factory.mktemp('prune')}"))


def test_what_it_left(pruned, spec):
    student = radioplat.load_student(pruned.path)
    assert len(student.backbone.blocks) == 1 and student.backbone.spatial_dim == 40
    assert student.backbone.blocks[0].attn.num_heads == 3  # a quarter of three heads is none
    assert pruned.after.params < 0.6 * pruned.before.params
    assert json.loads((pruned.path / "prune.json").read_text())["after"]["params"] == pruned.after.params
    last = read_status(pruned.path.parent / "status.json")[-1]
    assert last["status"] == "SUCCESS" and last["kpi"]["params_kept"] < 0.6


def test_the_terminal_says_what_went_not_what_was_asked(pruned, capsys):
    show(pruned)
    said = " ".join(capsys.readouterr().out.split())
    assert pruned.went == (0, pytest.approx(0.25, abs=0.05)) and "0% to 2" in said
    assert "distill.results_dir=ANOTHER" in said


def test_an_amount_that_leaves_no_channel_is_refused(spec, tmp_path):
    with pytest.raises(SpecError, match=r"prune.amount: 0.9999 leaves less than one of .* Take 0\.9\d+ at most"):
        prune(spec, ("prune.amount=0.9999", f"prune.results_dir={tmp_path}"))


def test_it_is_judged_and_exported_as_any_student(pruned, spec, tmp_path):
    changes = (f"evaluate.checkpoint={pruned.path}", f"results_dir={tmp_path}", "evaluate.pictures=0")
    found = evaluate(spec, changes)
    assert found.fidelity["student"]["lite0"].keys() == {"summary", "spatial"}
    report = export(load_spec(spec, (f"export.checkpoint={pruned.path}", f"results_dir={tmp_path}")))
    assert report.path.is_file() and report.max_abs_error < 1e-4
    with pytest.raises(EngineError, match="export.format: format radio has no place"):
        export(load_spec(spec, (f"export.checkpoint={pruned.path}", f"results_dir={tmp_path}", "export.format=radio")))


def test_it_is_retrained_from_where_it_is(pruned, spec, distil, tmp_path):
    trail = distil(spec, f"train.pretrained_model_path={pruned.path}", f"results_dir={tmp_path}", "train.num_epochs=1")
    student = radioplat.load_student(trail.result.checkpoint)
    assert len(student.backbone.blocks) == 1 and student.backbone.spatial_dim == 40
    assert not [line for line in trail.lines if "starts anew" in line]


@pytest.mark.parametrize("score", ["taylor", pytest.param("hessian", marks=pytest.mark.proof)])
def test_channels_are_judged_by_the_gradients_of_the_runs_own_loss(spec, score, tmp_path, monkeypatch):
    """Each micro-batch leaves gradients, what stays are rows of the student, and others than the largest ones."""
    seen = []
    see = ChannelScore.add_gradients

    def watched(self, student):
        """Keep what each backward left."""
        weight = student.backbone.blocks[0].mlp.fc1.weight
        seen.append((weight.detach().clone(), weight.grad.clone()))
        see(self, student)

    monkeypatch.setattr(ChannelScore, "add_gradients", watched)
    report = prune(spec, (f"prune.score={score}", "prune.score_batches=3", f"prune.results_dir={tmp_path}"))
    assert len(seen) == 3 and all(grad.abs().sum() > 0 for _, grad in seen)
    small = radioplat.load_student(report.path)
    assert small.backbone.blocks[0].mlp.fc1.out_features == 96
    kept = small.backbone.blocks[0].mlp.fc1.weight
    assert all((seen[0][0] == row).all(1).any() for row in kept)
    by_magnitude = prune(spec, (f"prune.results_dir={tmp_path / 'magnitude'}",))
    assert not torch.equal(radioplat.load_student(by_magnitude.path).backbone.blocks[0].mlp.fc1.weight, kept)


def test_gradients_need_the_heads_of_the_teachers(spec, pruned, tmp_path):
    changed = dataclasses.replace(spec.distill.teacher[0], name="other")
    other = dataclasses.replace(spec, distill=dataclasses.replace(spec.distill, teacher=[changed]), teachers={})
    with pytest.raises(WeightsError, match="prune.checkpoint.*no head .spatial, summary. for teacher other"):
        prune(other, ("prune.score=taylor", f"prune.results_dir={tmp_path}"))


@pytest.fixture(scope="module")
def sparse(spec, tmp_path_factory):
    return prune(spec, ("prune.sparsity.type=2:4", f"prune.results_dir={tmp_path_factory.mktemp('sparse')}"))


@pytest.mark.proof
def test_two_of_four_are_zero_in_the_exported_graph_too(sparse, spec, tmp_path):
    found = sparse.sparse
    assert found.zeros * 2 == found.weights and not found.left_out and sparse.after.macs == sparse.before.macs
    path = export(load_spec(spec, (f"export.checkpoint={sparse.path}", f"results_dir={tmp_path}"))).path
    graph = onnx.load(path).graph
    matrices = [a for a in map(onnx.numpy_helper.to_array, graph.initializer) if a.ndim == 2 and min(a.shape) >= 48]
    zeros = sum(int((a == 0).sum()) for a in matrices)
    assert zeros >= found.zeros and zeros == pytest.approx(found.zeros, rel=0.01)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("train.zero_stage=1",), marks=pytest.mark.proof),
        pytest.param(("train.zero_stage=2", "train.precision=bf16", "train.optim.optim=lamb"), marks=pytest.mark.proof),
        ("train.zero_stage=3", "train.optim.optim=sgd", "train.enable_ema=true", "train.ema_decay=0.5"),
    ],
    ids=["zero 1", "zero 2 bf16", "zero 3 ema"],
)
def test_zeros_outlive_training(sparse, spec, distil, student_tensors, how, tmp_path):
    """Weight decay, moments, averages and a start from a checkpoint: what was zero is, and what was not has moved."""
    before = student_tensors(sparse.path)
    changes = (f"train.pretrained_model_path={sparse.path}", f"results_dir={tmp_path}", "train.optim.weight_decay=0.5")
    distil(spec, *changes, *how, "train.max_steps=2")
    trail = distil(spec, *changes, *how, "train.max_steps=3")
    assert trail.result.resumed_from == 2
    after = [student_tensors(trail.result.checkpoint)]
    if has_average(trail.result.checkpoint):
        after.append(read_average(trail.result.checkpoint))
    layers = radioplat.load_student(trail.result.checkpoint).architecture.sparsity.layers
    assert len(layers) == sparse.sparse.layers
    for tensors in after:
        for name in layers:
            old, new = before[f"backbone.{name}.weight"], tensors[f"backbone.{name}.weight"]
            assert (new[old == 0] == 0).all() and (new[old != 0] != old[old != 0]).float().mean() > 0.9


def test_a_budget_finds_the_amount(spec, tmp_path):
    report = prune(spec, ("prune.budget.macs=0.6", "prune.granularity=4", f"prune.results_dir={tmp_path}"))
    assert 0.4 < report.after.macs / report.before.macs <= 0.6
    with pytest.raises(SpecError, match="prune.budget"):
        prune(spec, ("prune.budget.macs=0.01", f"prune.results_dir={tmp_path}"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("prune.amount=1", "prune.amount: must be at least 0 and below 1, not 1"),
        ("prune.parts=[]", "prune.parts: there is nothing to prune"),
        ("prune.sparsity.amount=0.3", "prune.sparsity.amount: it has no effect without a type"),
        ("prune.sparsity={type: unstructured, amount: 1}", "prune.sparsity.amount: must be above 0 and below 1, not 1"),
        ("prune.sparsity={type: 2:4, amount: 0.3}", "prune.sparsity.amount: 2:4 means 0.5, not 0.3"),
        ("prune.exclude=[layer9]", r"prune.exclude\[0\]: no layer of the backbone is called 'layer9'"),
        (
            "prune.parts=[] prune.sparsity.type=2:4 prune.reconstruction_images=8",
            "prune.reconstruction_images: neither channels nor blocks are removed",
        ),
        (
            "prune.parts=[width] prune.reconstruction_images=8",
            "prune.reconstruction_images: blocks of another width cannot give",
        ),
        ("prune.blocks=2", "prune.blocks: 2 blocks cannot be removed"),
        ("prune.budget.params=2", "prune.budget.params: must be above 0 and below 1"),
        ("prune.mode=threshold prune.budget.params=0.5", "prune.budget: a budget determines prune.amount"),
    ],
)
def test_what_cannot_be_is_named(spec, override, said, tmp_path):
    with pytest.raises(SpecError, match=said):
        prune(spec, (*re.split(r" (?=prune)", override), f"prune.results_dir={tmp_path}"))
