"""A user's own metrics by import path: measured, recorded and compared by gates; what is wrong with one is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import skimage.data
import timm
import torch
from PIL import Image

from radioplat.design.models import design_models
from radioplat.errors import RadioplatError, SpecError
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.checkpoint import save_student
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.gate_metrics import gate_metric, measure, measuring_spec
from radioplat.tasks.evaluate.show import show
from radioplat.tasks.tune.judge import judge
from radioplat.tasks.tune.space import load_space
from radioplat.tracking.status import read_status

MINE = """
import torch

class EffectiveRank:
    '''Entropy of the normalised singular values of each model's summaries, exponentiated.'''

    def __init__(self):
        self.rows = {}

    def update(self, batch):
        for name, features in batch.features.items():
            self.rows.setdefault(name, []).append(features.summary)

    def result(self):
        return {name: self.rank(torch.cat(rows)) for name, rows in self.rows.items()}

    def rank(self, rows):
        share = torch.linalg.svdvals(rows.double() - rows.double().mean(0))
        share = share / share.sum()
        return torch.exp(torch.special.entr(share).sum())

class Drift:
    '''Distance of the mean held-out summary from the mean training summary.'''

    def __init__(self):
        self.means = {}

    def learn(self, batch):
        for name, features in batch.features.items():
            self.means.setdefault(name, ([], []))[0].append(features.summary.mean(0))

    def update(self, batch):
        for name, features in batch.features.items():
            self.means[name][1].append(features.summary.mean(0))

    def result(self):
        return {n: (torch.stack(a).mean(0) - torch.stack(b).mean(0)).norm() for n, (a, b) in self.means.items()}

def norm(summaries, labels):
    assert len(summaries) == len(labels) and labels.min() >= 0
    return summaries.norm(dim=1).mean().item()

def fails(summaries, labels):
    raise KeyError("no such thing")

def nan(summaries, labels):
    return float("nan")

def words(summaries, labels):
    return "much"

class NoResult:
    def update(self, batch): ...

class NeedsArguments:
    def __init__(self, size): ...
    def update(self, batch): ...
    def result(self): return {}

class FailsInUpdate(EffectiveRank):
    def update(self, batch): 1 / 0

class OneNumber(EffectiveRank):
    def result(self): return 3.0

number = 3
knn = norm
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> dict:
    """A spec with a ViT as teacher, and a student's checkpoint."""
    root = tmp_path_factory.mktemp("own_metrics")
    (root / "their_metrics.py").write_text(MINE)
    scenes = {"astronaut": skimage.data.astronaut(), "cat": skimage.data.chelsea()}
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 4)):
        for name, picture in scenes.items():
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                y, x = (int(rng.integers(0, limit - 80)) for limit in picture.shape[:2])
                Image.fromarray(picture[y : y + 80, x : x + 80]).save(root / split / name / f"{i}.png")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        safetensors.torch.save_file(timm.create_model("test_vit", img_size=64).state_dict(), root / "vit.safetensors")
    teacher = {
        "name": "vit",
        "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": 64}}},
        "pretrained_teacher_model_path": str(root / "vit.safetensors"),
        "mode": "summary",
        "loss_type": "CS",
    }
    spec = {
        "results_dir": str(root / "results"),
        "model": {
            "backbone": {
                "type": "radio_vit_tiny_patch16",
                "kwargs": {"embed_dim": 48, "depth": 1, "num_heads": 3},
            }
        },
        "dataset": {
            "img_size": 64,
            "batch_size": 5,
            "workers": 1,
            "train_dataset": {"images_dir": str(root / "train")},
            "val_dataset": {"images_dir": str(root / "val")},
        },
        "distill": {"mlp_hidden_size": 32, "teacher": [teacher]},
        "cluster": {"mode": "local"},
        "evaluate": {"pictures": 0, "cka_rows": 0},
    }
    loaded = load_spec(spec)
    student = start_student(loaded, design_models(loaded, "distill").architecture)
    (root / "student").mkdir()
    save_student(student, student.state_dict(), root / "student")
    spec["evaluate"]["checkpoint"] = str(root / "student")
    return spec


@pytest.fixture(autouse=True)
def importable(base, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(base["results_dir"]).parent))
    yield
    sys.modules.pop("their_metrics", None)


def spec_of(base: dict, results: Path, *metrics: str, **evaluate_fields) -> dict:
    section = {**base["evaluate"], "metrics": [f"their_metrics:{name}" for name in metrics], **evaluate_fields}
    return {**base, "results_dir": str(results), "evaluate": section}


def test_own_metrics_are_measured_beside_the_others(base, tmp_path, capsys):
    result = evaluate(spec_of(base, tmp_path, "EffectiveRank", "Drift", "norm"))
    models = {"student", "untrained student", "vit"}
    written = json.loads((result.folder / "results.json").read_text())
    assert written["metrics"].keys() == models == written["knn"].keys()
    for values in written["metrics"].values():
        assert 1 < values["EffectiveRank"] <= 8 and values["Drift"] > 0 and values["norm"] > 0
    kpi = read_status(result.folder / "status.json")[-1]["kpi"]
    assert kpi["metrics/EffectiveRank/student"] == written["metrics"]["student"]["EffectiveRank"]
    show(result)
    assert "Own metrics on held-out images" in capsys.readouterr().out
    assert "EffectiveRank" in result.report.read_text(encoding="utf-8")
    assert result.objectives()["Drift"] == written["metrics"]["student"]["Drift"]


def test_models_side_by_side_have_them_in_their_rows(base, tmp_path, capsys):
    path = base["evaluate"]["checkpoint"]
    spec = spec_of(base, tmp_path, "norm", checkpoint=None, models={"a": path, "b": path})
    result = evaluate(spec)
    first, second = result.models
    assert first.measured["metrics"]["norm"] == second.measured["metrics"]["norm"] > 0
    assert second.difference["metrics/norm"] == 0
    rows = json.loads((result.folder / "results.json").read_text())["models"]
    assert rows[1]["metrics"] == second.measured["metrics"]
    assert "models/b/metrics/norm" in read_status(result.folder / "status.json")[-1]["kpi"]
    show(result)
    assert "norm" in capsys.readouterr().out


def test_without_own_metrics_nothing_is_written_of_them(base, tmp_path):
    result = evaluate(spec_of(base, tmp_path))
    assert "metrics" not in json.loads((result.folder / "results.json").read_text())


def test_an_own_metric_is_a_gate_and_an_objective(base, tmp_path):
    gates = {"metric": "their_metrics:EffectiveRank", "min_kept": 0.9}
    spec = load_spec({**spec_of(base, tmp_path, "norm"), "compress": {"stages": ["prune"], "gates": gates}})
    assert load_spec(yaml_file(spec, tmp_path)).compress.gates.metric == spec.compress.gates.metric
    assert gate_metric(spec) == "EffectiveRank"
    checkpoint = Path(base["evaluate"]["checkpoint"])
    values = measure(measuring_spec(spec, [spec.compress.gates.metric]), checkpoint, tmp_path / "gate")
    assert values.keys() == {"fidelity", "knn", "EffectiveRank"} and values["EffectiveRank"] > 1
    objectives = [{"metric": "their_metrics:Drift", "mode": "min"}, {"metric": "macs", "mode": "min"}]
    space = load_space(
        {"parameters": {"train.optim.lr": {"grid": [1e-3]}}, "search": {"algorithm": "grid"}, "objectives": objectives}
    )
    assert space.modes == {"Drift": "min", "macs": "min"}
    assert judge(spec, checkpoint, tmp_path / "trial", space)["Drift"] > 0


def yaml_file(spec, folder: Path) -> Path:
    (folder / "spec.yaml").write_text(to_yaml(spec))
    return folder / "spec.yaml"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "cannot import their_metrics:nothing"),
        ("number", "is neither a class nor a function"),
        ("NoResult", "lacks result"),
        ("NeedsArguments", "failed: TypeError"),
    ],
)
def test_what_is_no_metric_is_refused_before_anything_is_encoded(base, tmp_path, name, message):
    encoded = []
    with pytest.raises(SpecError, match=message) as error:
        evaluate(spec_of(base, tmp_path, "norm", name), progress=lambda *done: encoded.append(done))
    assert error.value.problems[0].where == "evaluate.metrics[1]" and not encoded


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "their_metrics:fails failed: KeyError: 'no such thing'"),
        ("nan", "returned nan for student: not finite"),
        ("words", "returned str for student, which is no number"),
        ("FailsInUpdate", "failed: ZeroDivisionError"),
        ("OneNumber", "returned float"),
    ],
)
def test_what_fails_is_named_with_its_field(base, tmp_path, name, message):
    with pytest.raises(RadioplatError, match=message) as error:
        evaluate(spec_of(base, tmp_path, "norm", name))
    assert error.value.problems[0].where == "evaluate.metrics[1]"
    assert read_status(tmp_path / "evaluate" / "status.json")[-1]["status"] == "FAILURE"


def test_names_that_cannot_be_told_apart_and_what_is_no_import_path(base, tmp_path):
    section = {"metrics": ["their_metrics.norm", "a:norm", "b:norm", "their_metrics:knn"]}
    problems = [p for p in check(load_spec({**base, "evaluate": section})) if p.where.startswith("evaluate.metrics")]
    assert [(p.where[-2], p.message) for p in problems] == [
        ("0", "'their_metrics.norm' is not an import path package.module:name"),
        ("2", "two metrics are called 'norm'"),
        ("3", "radioplat has a metric of the name 'knn'"),
    ]
    with pytest.raises(SpecError, match=r"objectives\[0\].metric: radioplat has a metric of the name 'macs'"):
        load_space({"parameters": {"a": {"choice": [1]}}, "objectives": [{"metric": "mine:macs"}]})
