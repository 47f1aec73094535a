"""Pruning in rounds on the quiet run's student: what stays, what it goes back to, and a start in the middle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import radioplat
from radioplat.errors import SpecError, WeightsError
from radioplat.models.student.checkpoint import load_student
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.prune.show import show
from radioplat.tracking.status import read_status
from radioplat.training.accounting.reporter import Reporter

pytestmark = pytest.mark.timeout(240)
ROUNDS = (
    "prune={parts: [hidden, width], amount: 0.5, rounds: 2, schedule: linear, sparsity: {type: unstructured}}",
    "prune.retrain={steps: 3, mode: weight_rewind}",
    "train.checkpoint_interval=1",
    "train.checkpoint_interval_unit=step",
)


@pytest.fixture(scope="module")
def spec(quiet_run):
    return load_spec(quiet_run.file)


@pytest.fixture(scope="module")
def early(quiet_run) -> Path:
    return quiet_run.folder / "model_epoch_000_step_00002"


@pytest.fixture(scope="module")
def rounds(spec, early, tmp_path_factory):
    """Two rounds in one go."""
    folder = tmp_path_factory.mktemp("rounds")
    return prune(spec, (*ROUNDS, f"prune.retrain.rewind_to={early}", f"prune.results_dir={folder}"), lambda line: None)


def test_what_each_round_left(rounds, spec, capsys):
    folder = rounds.path.parent
    students = [load_student(folder / f"round_{i}" / "model_pruned") for i in (1, 2)]
    assert [s.backbone.blocks[0].mlp.fc1.out_features for s in students] == [144, 96]  # of 192, a quarter each
    zeros = [(s.backbone.blocks[0].mlp.fc1.weight == 0).float().mean().item() for s in students]
    assert zeros == [pytest.approx(0.25, abs=0.01), pytest.approx(0.5, abs=0.01)]
    left = [each.after.params for each in rounds.rounds]
    assert rounds.before.params > left[0] > left[1] == rounds.after.params and rounds.amount == pytest.approx(0.5)
    last = load_student(folder / "round_2" / "distill" / "model_latest")
    final = radioplat.load_student(rounds.path)
    assert final.architecture == last.architecture
    assert all(torch.equal(a, b) for a, b in zip(final.state_dict().values(), last.state_dict().values(), strict=True))
    assert len(json.loads((rounds.path / "prune.json").read_text())["rounds"]) == 2
    show(rounds)
    assert "Rounds" in capsys.readouterr().out


def test_what_stays_goes_back_to_what_it_was(rounds, early):
    """Of each layer the rewound values are rows and columns of the early checkpoint, or zeros that are held."""
    first, folder = load_student(early, ema=False), rounds.path.parent
    known = {name: set(tensor.flatten().tolist()) | {0.0} for name, tensor in first.backbone.named_parameters()}
    for number in (1, 2):
        rewound = load_student(folder / f"round_{number}" / "model_rewound")
        pruned = load_student(folder / f"round_{number}" / "model_pruned")
        assert rewound.architecture == pruned.architecture
        for name, tensor in rewound.backbone.named_parameters():
            assert set(tensor.flatten().tolist()) <= known[name]
        layers = rewound.architecture.sparsity.layers
        for name in layers:
            a, b = (s.backbone.get_submodule(name).weight for s in (rewound, pruned))
            assert (a[b == 0] == 0).all() and not torch.equal(a, b)


def test_the_schedule_is_replayed_at_its_rate(rounds, spec):
    for number in (1, 2):
        rows = read_status(rounds.path.parent / f"round_{number}" / "distill" / "status.json")
        rates = [row["kpi"]["lr"] for row in rows if "lr" in row.get("kpi", {})]
        assert rates == [pytest.approx(spec.train.optim.lr * share) for share in (1, 0.75, 0.25)]


@pytest.mark.proof
def test_the_same_command_goes_on_at_the_step_where_it_was(rounds, spec, early, tmp_path, monkeypatch):
    """Stopped after the second step of the second round; the student that comes out is that of the quiet rounds."""
    asked = (*ROUNDS, f"prune.retrain.rewind_to={early}", f"prune.results_dir={tmp_path}")
    step = Reporter.after_step

    def stopped(self, record, *rest):
        """Interrupt the user's process there."""
        step(self, record, *rest)
        if "round_2" in str(self._run.folder) and record.step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Reporter, "after_step", stopped)
        prune(spec, asked, lambda line: None)
    assert not (tmp_path / "model_pruned").exists() and (tmp_path / "round_2" / "distill").is_dir()
    lines: list[str] = []
    again = prune(spec, asked, lines.append)
    assert any("has all 3 steps" in line for line in lines) and any("goes on from" in line for line in lines)
    a, b = radioplat.load_student(again.path).state_dict(), radioplat.load_student(rounds.path).state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(SpecError, match="prune: .* was started with another section"):
        prune(spec, (*asked, "prune.amount=0.4"))


@pytest.mark.proof
def test_a_budget_is_kept_at_the_end_of_all_rounds(spec, tmp_path):
    asked = "prune={budget: {macs: 0.6}, granularity: 4, rounds: 2, retrain: {steps: 1, mode: lr_rewind}}"
    report = prune(spec, (asked, f"prune.results_dir={tmp_path}"), lambda line: None)
    left = [each.after.macs / report.before.macs for each in report.rounds]
    assert 0.6 < left[0] <= 0.6**0.5 and 0.4 < left[1] <= 0.6


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{rounds: 2}", "prune.rounds: several rounds need retraining"),
        ("{schedule: cubic}", "prune.schedule: one round has no schedule"),
        ("{rounds: 0}", "prune.rounds: must be at least 1 and at most 1000, not 0"),
        ("{rounds: 2, mode: threshold, retrain: {steps: 1}}", "prune.rounds: .*mode threshold does not read"),
        ("{rounds: 2, sparsity: {type: '2:4'}, retrain: {steps: 1}}", "prune.rounds: 2:4 sparsity is reached"),
        ("{retrain: {mode: lr_rewind}}", "prune.retrain.mode: nothing is retrained"),
        ("{retrain: {steps: 1, mode: weight_rewind}}", "prune.retrain.rewind_to: mode weight_rewind needs"),
        ("{retrain: {steps: 1, rewind_to: there}}", "prune.retrain.rewind_to: only mode weight_rewind"),
        ("{retrain: {steps: 0}}", "prune.retrain.steps: must be at least 1"),
    ],
)
def test_what_cannot_be_is_named(spec, section, said, tmp_path):
    with pytest.raises(SpecError, match=said):
        prune(spec, (f"prune={section}", f"prune.results_dir={tmp_path}"))


def test_weights_to_go_back_to_are_looked_for_first(spec, tmp_path):
    retrain = "prune.retrain={steps: 1, mode: weight_rewind, rewind_to: nowhere}"
    with pytest.raises(WeightsError, match="prune.retrain.rewind_to: nowhere is not a checkpoint folder"):
        prune(spec, (retrain, f"prune.results_dir={tmp_path}"))
    assert not (tmp_path / "round_1").exists()


@pytest.mark.proof
def test_on_ray_as_in_one_process(spec, tmp_path):
    """The retraining is a run like any other: two workers of a cluster, and the weights of one process."""
    asked = "prune={parts: [hidden], score: taylor, score_batches: 2, retrain: {steps: 2}}"
    found = []
    for mode, workers in (("ray", 2), ("local", 1)):
        changes = (f"cluster.mode={mode}", f"train.num_gpus={workers}", f"prune.results_dir={tmp_path / mode}")
        found.append(load_student(prune(spec, (asked, *changes), lambda line: None).path).state_dict())
    for name, tensor in found[0].items():
        assert torch.allclose(tensor, found[1][name], atol=1e-4), name
