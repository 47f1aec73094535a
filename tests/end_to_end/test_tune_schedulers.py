"""Schedulers on a real Ray: weights that PBT clones, trials that ASHA ends, a failure that is named."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import psutil
import pytest
import ray

from radioplat.spec.loading.load import load_spec
from radioplat.tasks.tune.draw import draw_values
from radioplat.tasks.tune.space import load_space
from radioplat.tasks.tune.trial_record import State
from radioplat.tasks.tune.tune import tune
from radioplat.tracking.status import read_status

pytestmark = pytest.mark.timeout(600)
LR = "train.optim.lr"


@pytest.fixture(scope="module")
def base(make_spec, tmp_path_factory):
    """One teacher, one cache of its answers for all sweeps of this module."""
    spec = make_spec("never", {"feature_cache": {"dir": str(tmp_path_factory.mktemp("answers"))}})
    spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
    del spec["teachers"]["lite0"]
    spec["train"] |= {"checkpoint_interval": 5, "checkpoint_interval_unit": "step"}
    return spec


def space(steps, **more):
    return {
        "task": "distill",
        "changes": [f"train.max_steps={steps}", f"train.num_epochs={-(-steps // 4)}"],
        "parameters": {LR: {"grid": [1e-3, 3e-3]}},
        "objectives": [{"metric": "fidelity"}, {"metric": "macs", "mode": "min"}],
        "search": {"algorithm": "grid"},
        **more,
    }


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all."""
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.proof
def test_pbt_clones_weights(base, cluster, tmp_path):
    """The loss of a step, taken before its update, says whose weights these are: the order of samples is the same."""
    said = {
        "parameters": {LR: {"choice": [1e-8, 3e-3]}},
        "search": {"algorithm": "random"},
        "scheduler": {"type": "pbt", "interval_steps": 60, "grace_steps": 60, "quantile": 0.5},
        "budget": {"trials": 2},
    }
    wanted = space(240, **said)
    for seed in range(100):
        wanted["search"]["seed"] = seed
        lrs = [draw_values(load_space(wanted), n, lambda path: None)[LR] for n in range(2)]
        if lrs == [1e-8, 3e-3]:
            break
    report = tune(base | {"results_dir": str(tmp_path)}, ("feature_cache.dir=null",), space=wanted)
    clone, donor = report.trials
    number, step = clone.clones[0]
    assert number == 1 and clone.state is State.done

    def losses(folder):
        lines = read_status(folder / "distill" / "status.json")
        return {line["step"]: line["kpi"]["loss"] for line in lines if "max_step" in line}

    home = tmp_path / "tune"
    own, taken = losses(home / "trial_0000"), losses(home / "trial_0000" / "clone_1")
    theirs = losses(home / "trial_0001")
    assert min(taken) == step + 1
    assert taken[step + 1] == pytest.approx(theirs[step + 1], rel=1e-5)
    if step + 1 in own:
        assert own[step + 1] != pytest.approx(theirs[step + 1], rel=1e-3)
    last = home / "trial_0000" / f"clone_{len(clone.clones)}" / "distill"
    assert read_status(last / "status.json")[-1]["status"] == "SUCCESS"
    assert load_spec(last / "experiment.yaml").train.optim.lr == clone.values[LR]


@pytest.mark.proof
def test_a_trial_whose_process_dies_goes_on(base, cluster, tmp_path):
    """From its checkpoint, in a new process; the other trial never hears of it."""
    killed: list[int] = []

    def kill() -> None:
        folder = tmp_path / "tune" / "trial_0000" / "distill"
        until = time.monotonic() + 200
        while not list(folder.glob("model_epoch_*")) and time.monotonic() < until:
            time.sleep(0.02)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(str(folder) in file.path for file in process.open_files()):
                    process.kill()
                    killed.append(process.pid)

    watcher = threading.Thread(target=kill, daemon=True)
    watcher.start()
    said = space(120, parameters={LR: {"grid": [1e-3, 3e-3]}}, max_failures=2, first_alone=False)
    report = tune(base | {"results_dir": str(tmp_path)}, (), space=said)
    watcher.join(10)
    first, second = report.trials
    assert killed and [r.state for r in report.trials] == [State.done] * 2
    assert (first.starts, second.starts) == (2, 1)
    lines = read_status(tmp_path / "tune" / "trial_0000" / "distill" / "status.json")
    again = next(line["message"] for line in lines if ": goes on from model_epoch" in line["message"])
    begun = int(again.partition(" at step ")[2].partition(" of ")[0])
    steps = [line["step"] for line in lines if "max_step" in line]
    assert begun >= 5 and steps[begun - 120 :] == list(range(begun + 1, 121))


@pytest.mark.proof
def test_asha_ends_what_learns_nothing_and_failures_are_named(base, cluster, tmp_path):
    said = space(
        400,
        parameters={LR: {"grid": [3e-3, 1e-8]}, "train.optim.optim": {"grid": ["adamw"]}},
        scheduler={"type": "asha", "grace_steps": 8, "reduction_factor": 2, "report_steps": 4},
        concurrent=1,
    )
    report = tune(base | {"results_dir": str(tmp_path)}, (), space=said)
    good, bad = report.trials
    assert (good.state, bad.state) == (State.done, State.stopped)
    assert 8 <= bad.step < 400 and not bad.metrics
    weights = tmp_path / "torn.safetensors"
    weights.write_bytes(b"nothing")
    said = space(4, parameters={"train.pretrained_model_path": {"grid": [str(weights), None]}}, concurrent=2)
    report = tune(base | {"results_dir": str(tmp_path / "other")}, (), space=said)
    failed, fine = report.trials
    assert failed.state is State.failed and "train.pretrained_model_path" in failed.reason and failed.starts == 1
    assert fine.state is State.done
    assert json.loads((tmp_path / "other" / "tune" / "trial_0000" / "trial.json").read_text())["state"] == "failed"
