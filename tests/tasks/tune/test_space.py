"""Search space files: what is refused and by which name, what is draw_values, what a grid and Optuna make of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.errors import RadioplatError, SpecError
from radioplat.quickstart.defaults import RADIO_VIT as SPEC
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.tune.domains import Domain
from radioplat.tasks.tune.draw import decoded, define_by_run, draw_values, encoded, grid
from radioplat.tasks.tune.space import load_space
from radioplat.tasks.tune.sweep import Plan, full_spec, make_plan, overrides_of, trial_spec
from radioplat.tasks.tune.trial_record import TrialRecord

SPACES = Path(__file__).parents[3] / "tune_spaces"
BASE = {
    "task": "distill",
    "parameters": {"train.optim.lr": {"loguniform": [1e-4, 1e-2]}},
    "objectives": [{"metric": "fidelity", "mode": "max"}],
    "budget": {"trials": 4},
}


def nothing(path):
    return None


@pytest.mark.parametrize("name", ["distill", "qat", "prune"])
def test_the_spaces_that_we_ship_fit_the_spec(name):
    space = load_space(SPACES / f"{name}.yaml")
    for number in range(2):
        values = draw_values(space, number, nothing)
        load_spec(SPEC, [*space.changes, *overrides_of(values)])
    if name == "distill":
        assert make_plan(SPEC, (), SPACES / "distill.yaml").trials == 16


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parameter": {}}, "parameter: unknown field. Did you mean parameters?"),
        ({"budget": {"trails": 3}}, "budget.trails: unknown field. Did you mean budget.trials?"),
        ({"budget": {}}, "budget.trials: the number of trials is needed"),
        ({"parameters": {}}, "parameters: no field varies"),
        ({"parameters": {"train.optim.lr": {"loguniform": [0, 1]}}}, "loguniform: must be above 0"),
        ({"parameters": {"train.optim.lr": {"uniform": [2, 1]}}}, "low must be below high"),
        ({"parameters": {"train.optim.lr": {"gauss": [0, 1]}}}, "one of uniform, .* is needed, not gauss"),
        ({"parameters": {"train.optim.lr": {"choice": []}}}, "the list is empty"),
        ({"objectives": [{"metric": "speed"}]}, "speed"),
        ({"objectives": []}, "objectives: no objective is given"),
        ({"task": "prune", "scheduler": {"type": "asha"}}, "scheduler.type: prune reports nothing while it runs"),
        ({"task": "prune", "scheduler": {"type": "pbt"}}, "cannot copy weights"),
        ({"parameters": {"dataset.img_size": [64, 96]}, "scheduler": {"type": "pbt"}}, "cannot change during a run"),
        ({"concurrent": 0}, "concurrent: must be above 0"),
    ],
)
def test_a_wrong_file_is_told_by_field(change, said):
    with pytest.raises(SpecError, match=said):
        load_space(BASE | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parameters": {"train.optim.lrr": [1, 2]}}, r"train.optim.lrr: unknown field. Did you mean train.optim.lr\?"),
        ({"parameters": {"train.num_epochs": ["many", 2]}}, "train.num_epochs: Value 'many'"),
        ({"changes": ["train.maxsteps=3"]}, "train.maxsteps: unknown field. Did you mean train.max_steps"),
        ({"budget": {"trials": 2, "money": 5}}, "cluster.gpu_hour_price: a budget in money needs prices"),
        (
            {"parameters": {"train.damp": {"uniform": [0, 1], "when": {"train.compil": True}}}},
            r"train.compil: unknown field",
        ),
    ],
)
def test_fields_are_those_of_the_spec(change, said):
    with pytest.raises(SpecError, match=said):
        make_plan(SPEC, (), BASE | change)


def test_what_is_quantized_must_be_there(tmp_path):
    space = BASE | {"task": "quantize", "parameters": {"quantize.per_channel": [True, False]}}
    with pytest.raises(RadioplatError, match="quantize.checkpoint"):
        make_plan(SPEC, [f"results_dir={tmp_path}"], space)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 5))
def test_every_draw_lies_in_its_domain_and_follows_from_seed_and_number(number, seed):
    said = {
        "a": {"loguniform": [1e-5, 1e-1]},
        "b": {"uniform": [-1.0, 2.0]},
        "c": {"quniform": [0.5, 2.0, 0.25]},
        "d": {"randint": [3, 5]},
        "e": {"choice": ["x", "y"]},
        "f": {"randint": [0, 9], "when": {"e": "y"}},
    }
    space = load_space(BASE | {"parameters": said, "search": {"seed": seed}})
    found = draw_values(space, number, nothing)
    assert 1e-5 <= found["a"] <= 1e-1 and -1 <= found["b"] <= 2 and found["d"] in (3, 4, 5)
    assert 0.5 <= found["c"] <= 2 and found["c"] % 0.25 == 0
    assert ("f" in found) == (found["e"] == "y")
    assert draw_values(space, number, nothing) == found


def test_logarithms_are_equally_likely():
    domain, rng = Domain("a", "loguniform", (1e-4, 1.0)), np.random.default_rng(0)
    logs = [math.log10(domain.draw(rng)) for _ in range(4000)]
    shares = np.histogram(logs, bins=4, range=(-4, 0))[0] / len(logs)
    assert np.abs(shares - 0.25).max() < 0.03


def test_a_grid_leaves_out_what_is_moot():
    said = {
        "quantize.algorithm": {"grid": ["minmax", "percentile"]},
        "quantize.percentile": {"grid": [99.0, 99.9], "when": {"quantize.algorithm": "percentile"}},
    }
    space = load_space(BASE | {"parameters": said, "search": {"algorithm": "grid"}, "budget": {}})
    points = grid(space, nothing)
    assert [p.get("quantize.percentile") for p in points] == [None, 99.0, 99.9]
    assert [draw_values(space, n, nothing) for n in range(3)] == points


def test_optuna_sees_the_same_space():
    space = load_space(SPACES / "qat.yaml")
    study, define = optuna.create_study(), define_by_run(space, nothing)
    for _ in range(5):
        trial = study.ask()
        define(trial)
        values = decoded(space, trial.params)
        assert ("quantize.percentile" in values) == (values["quantize.algorithm"] == "percentile")
        assert isinstance(values["quantize.layers"], list) and encoded(space, values) == trial.params
        load_spec(SPEC, overrides_of(values))


def test_a_trials_spec_has_its_values_and_the_best_one_is_full(tmp_path):
    space = BASE | {"changes": ["train.max_steps=5"], "parameters": {"train.optim.lr": [0.5, 0.25]}}
    plan = make_plan(SPEC, [f"results_dir={tmp_path}", "train.num_gpus=1"], space)
    record = TrialRecord(3, {"train.optim.lr": 0.25})
    spec = trial_spec(plan, record)
    assert spec.train.optim.lr == 0.25 and spec.train.max_steps == 5
    assert spec.results_dir == str(tmp_path / "tune" / "trial_0003")
    assert spec.dataset.index_dir == str(tmp_path / "tune" / "index") and spec.cluster.mode.value == "local"
    pools = {service.pool for service in spec.teachers.values()}
    assert len(pools) == 1 and None not in pools
    best = full_spec(plan, record)
    assert best.train.optim.lr == 0.25 and best.train.max_steps is None and best.teachers["lite0"].pool is None
    plan.write()
    assert Plan.read(plan.home).space == plan.space


def test_a_clone_has_folders_of_its_own_here_and_on_the_mirror(tmp_path):
    """In those of its trial are newer checkpoints of other weights, which a start would prefer."""
    plan = make_plan(SPEC, [f"results_dir={tmp_path}", f"train.checkpoint_dir={tmp_path}/mirror"], BASE)
    for clones, folder in (([], "trial_0003"), ([[1, 3], [2, 6]], "trial_0003/clone_2")):
        spec = trial_spec(plan, TrialRecord(3, {}, clones=clones))
        assert spec.results_dir == str(tmp_path / "tune" / folder)
        assert spec.train.checkpoint_dir == str(tmp_path / "mirror" / "tune" / folder)


def test_teachers_that_vary_are_not_shared():
    plan = make_plan(SPEC, (), BASE | {"parameters": {"dataset.img_size": [64, 96]}})
    assert not plan.pooled


def test_a_list_alone_is_a_choice():
    assert load_space(BASE | {"parameters": {"a": [1, 2]}}).domains == [Domain("a", "choice", (1, 2))]
