"""A detector through `radioplat prune`, and on from there: training, evaluation."""

from __future__ import annotations

import pytest

import radioplat
from benchmarks.composites import write_set
from radioplat.errors import SpecError
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.prune.show import show

pytest.importorskip("transformers")
pytest.importorskip("pycocotools")

OPTIONS = dict(
    d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_layers=1, decoder_layers=1, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, num_feature_levels=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A mapping, and a detector of two steps in its results."""
    folder = tmp_path_factory.mktemp("run")
    sets = {name: write_set(folder / name, 8, name == "val", side=64) for name in ("train", "val")}
    splits = {f"{name}_dataset": dict(images_dir=str(i), coco=str(c)) for name, (i, c) in sets.items()}
    spec = {
        "results_dir": str(folder / "results"),
        "model": {
            "task": "detection",
            "backbone": {"type": "resnet10t"},
            "detector": {"kind": "dino", "options": OPTIONS},
        },
        "dataset": {"img_size": 64, "batch_size": 4, "workers": 1, **splits},
        "train": {"max_steps": 1, "optim": {"policy": "multistep"}, "validation_interval": 9},
        "prune": {"parts": ["hidden", "width"]},
        "cluster": {"mode": "local"},
    }
    radioplat.train(spec)
    return spec


@pytest.mark.proof
def test_what_is_left_is_judged_and_trains_on(spec, tmp_path, capsys):
    report = prune(spec)
    assert report.after.params < 0.4 * report.before.params and report.amount == 0.5
    show(report)
    assert "multiply-accumulates" in capsys.readouterr().out
    small = load_detector(report.path)
    assert small.architecture.class_names and small.architecture.student.pruned is not None
    assert evaluate(spec, (f"evaluate.checkpoint={report.path}",)).result.images == 8
    again = (f"train.pretrained_model_path={report.path}", f"results_dir={tmp_path}", "train.optim.lr=1e-12")
    trained = load_detector(radioplat.train(spec, again).checkpoint)
    assert trained.architecture == small.architecture
    mine, theirs = small.state_dict(), dict(trained.named_parameters())
    assert all((mine[name] - theirs[name]).abs().max() < 1e-6 for name in theirs), "it began with what was left"


@pytest.mark.proof
def test_a_budget_is_kept(spec, tmp_path):
    report = prune(spec, ("prune.budget.macs=0.6", f"prune.results_dir={tmp_path}"))
    assert 0.4 * report.before.macs < report.after.macs <= 0.6 * report.before.macs


@pytest.mark.parametrize(
    "override, says",
    [
        ("prune.score=taylor", "prune.score: score taylor is not supported"),
        ("prune.blocks=1", "prune.blocks: blocks of a detector"),
        ("prune.sparsity.type=2:4", "prune.sparsity.type"),
        ("prune.retrain.steps=1", "prune.retrain: .*Leave it out, and use the stages prune and retrain"),
        ("prune.amount=0.999", "prune.amount: 0.999 leaves less than one"),
    ],
)
def test_what_a_detector_cannot_lose_is_named(spec, tmp_path, override, says):
    with pytest.raises(SpecError, match=says):
        prune(spec, [override, f"prune.results_dir={tmp_path}"])


def test_a_spec_that_does_not_tell_that_it_is_a_detector(spec, tmp_path):
    checkpoint = f"{spec['results_dir']}/train/model_latest"
    with pytest.raises(SpecError, match="prune.score: score random is not supported"):
        prune({"results_dir": str(tmp_path), "prune": {"checkpoint": checkpoint, "score": "random"}})
