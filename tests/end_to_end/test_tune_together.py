"""Trials that differ in the student alone learn from one pass of the teachers, with the results of trials apart."""

from __future__ import annotations

import pytest

from radioplat.tasks.tune.sweep import make_plan
from radioplat.tasks.tune.together import why_apart
from radioplat.tasks.tune.trial_record import State
from radioplat.tasks.tune.tune import tune

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
LR, WIDTH = "train.optim.lr", "model.backbone.kwargs.embed_dim"


def space(**more) -> dict:
    return {
        "task": "distill",
        "parameters": {LR: {"grid": [1e-3, 3e-3]}, WIDTH: {"grid": [24, 48]}},
        "objectives": [{"metric": "fidelity"}, {"metric": "macs", "mode": "min"}],
        "search": {"algorithm": "grid"},
        **more,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"share_pass": "never"}, "never"),
        ({"scheduler": {"type": "asha"}}, "scheduler asha"),
        ({"parameters": {"distill.teacher[0].loss_lambda": [1.0, 2.0]}}, "distill.teacher[0].loss_lambda"),
        ({"parameters": {"dataset.augmentation.random_flip.hflip_probability": [0.0, 0.5]}}, "dataset.augmentation"),
        ({"parameters": {"train.num_gpus": [1, 2]}}, "train.num_gpus"),
        ({"budget": {"hours": 1.0}}, "budget"),
    ],
)
def test_what_keeps_trials_apart(make_spec, tmp_path, changes, reason):
    apart = why_apart(make_plan(make_spec(tmp_path), [], {**space(), **changes}))
    assert reason in apart and bool(apart) == bool(reason)


@pytest.mark.parametrize(
    "varied", [{WIDTH: {"grid": [24, 48]}}, pytest.param({}, marks=pytest.mark.proof)], ids=["two", "four"]
)
def test_the_results_are_those_of_trials_apart(make_spec, tmp_path, ray_environment, monkeypatch, varied):
    for name, value in ray_environment.items():
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    spec = make_spec(tmp_path / "together", {"model": {"backbone": {"kwargs": {"num_heads": 2}}}})
    shared = space(**({"parameters": varied} if varied else {}))
    together = tune(spec, space=shared, say=lines.append)
    assert "trials learn from one pass of the teachers" in lines
    assert [record.state for record in together.trials] == [State.done] * (2 if varied else 4)
    passes = list((tmp_path / "together" / "tune" / "together").glob("*/distill/attempts.jsonl"))
    assert [path.parts[-3] for path in passes] == ["trial_0000"], "one pass for all"
    apart_space = {**shared, "share_pass": "never"}
    apart = tune({**spec, "results_dir": str(tmp_path / "apart")}, space=apart_space, say=lines.append)
    for ours, theirs in zip(together.trials, apart.trials, strict=True):
        assert ours.values == theirs.values and ours.metrics == pytest.approx(theirs.metrics, rel=1e-5)
    assert together.best.values == apart.best.values
    again = tune(spec, space=shared, say=lines.append)  # nothing is left to do
    assert [record.metrics for record in again.trials] == [record.metrics for record in together.trials]


def test_a_trial_that_cannot_start_fails_alone(make_spec, tmp_path, ray_environment, monkeypatch):
    for name, value in ray_environment.items():
        monkeypatch.setenv(name, value)
    spec = make_spec(tmp_path, {"model": {"backbone": {"kwargs": {"num_heads": 2}}}})
    widths = {"parameters": {WIDTH: {"grid": [24, 25]}}, "objectives": [{"metric": "params", "mode": "min"}]}
    report = tune(spec, space=space(**widths), say=lambda line: None)
    assert [record.state for record in report.trials] == [State.done, State.failed], report.trials
    assert report.trials[1].reason
