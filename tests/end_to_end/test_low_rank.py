"""A distilled student decomposed, retrained against the same teachers, judged and exported; and gone on with."""

from __future__ import annotations

import json

import pytest
import torch

import radioplat
from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.export.export import export
from radioplat.tasks.low_rank.low_rank import low_rank
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import read_checkpoint

pytestmark = pytest.mark.timeout(180)
RETRAIN = ("low_rank.energy=0.9", "low_rank.include=[blocks.*]", "low_rank.retrain.steps=2")


@pytest.fixture(scope="module")
def spec(quiet_run):
    return load_spec(quiet_run.file)


@pytest.fixture(scope="module")
def report(spec, tmp_path_factory):
    return low_rank(spec, (*RETRAIN, f"low_rank.results_dir={tmp_path_factory.mktemp('low')}"), say=lambda line: None)


@pytest.mark.proof
def test_what_it_left(report, spec, tmp_path):
    student, start = (
        radioplat.load_student(report.path),
        radioplat.load_student(report.path.parent / "model_decomposed"),
    )
    assert student.architecture.low_rank == report.layers.ranks == start.architecture.low_rank
    assert report.after.params < report.before.params and report.after.macs < report.before.macs
    name = next(iter(report.layers.ranks))
    before, after = (s.backbone.get_submodule(name)[0].weight for s in (start, student))
    assert before.shape == after.shape and not torch.equal(before, after)  # it was trained
    assert json.loads((report.path / "low_rank.json").read_text())["layers"]["ranks"] == report.layers.ranks
    assert read_status(report.path.parent / "status.json")[-1]["kpi"]["params_kept"] < 1
    found = export(load_spec(spec, (f"export.checkpoint={report.path}", f"results_dir={tmp_path}")))
    assert found.max_abs_error < 1e-4


@pytest.mark.proof
def test_the_same_command_goes_on(report, spec):
    lines: list[str] = []
    place = f"low_rank.results_dir={report.path.parent}"
    again = low_rank(spec, (*RETRAIN, place), say=lines.append)
    assert again == report and any("nothing is left to do" in line for line in lines)
    with pytest.raises(SpecError, match="low_rank: .* was started with another section"):
        low_rank(spec, (*RETRAIN, place, "low_rank.energy=0.8"))


def test_its_rate_is_low_and_does_not_fall(report, spec):
    rows = [row for row in read_status(report.path.parent / "retrain" / "distill" / "status.json") if "step" in row]
    rates = {row["kpi"]["lr"] for row in rows if "lr" in row.get("kpi", {})}
    assert list(rates) == [pytest.approx(0.1 * spec.train.optim.lr)]
    _, state = read_checkpoint(report.path.parent / "retrain" / "distill" / "model_latest")
    assert any(name.endswith("fc1.0.weight.exp_avg") for name in state)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), "low_rank: no rank is given"),
        (("low_rank.rank=2", "low_rank.ratio=0.5"), "low_rank: rank and ratio contradict each other"),
        (("low_rank.energy=1",), "low_rank.energy: must be above 0 and below 1, not 1"),
        (("low_rank.rank=2", "low_rank.retrain.lr=1e-3"), "low_rank.retrain.lr: nothing is retrained"),
        (("low_rank.rank=2", "low_rank.retrain.mode=weight_rewind"), "low_rank.retrain.mode: low-rank factors"),
        (("low_rank.rank=2", "low_rank.retrain={steps: 1, epochs: 2}"), "low_rank.retrain.steps"),
    ],
)
def test_what_cannot_be_is_named(spec, overrides, said, tmp_path):
    with pytest.raises(SpecError, match=said):
        low_rank(spec, (*overrides, f"low_rank.results_dir={tmp_path}"))
