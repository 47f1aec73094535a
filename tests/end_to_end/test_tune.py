"""A sweep on a real Ray: killed and gone on with; what its trials share, and what it leaves."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from wandb_files import artifacts, history, records, run_files

from radioplat.cli.main import main
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.tune.trial_record import State, read_trials
from radioplat.tasks.tune.tune import tune
from radioplat.tracking.status import read_status
from radioplat.tracking.teacher_cost import TeacherCosts

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
LR = "train.optim.lr"
STEPS = 60


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
def killed(base, tmp_path_factory, ray_environment):
    """A sweep of two trials, ended by SIGKILL while the second one trains."""
    folder = tmp_path_factory.mktemp("killed")
    spec = base | {"results_dir": str(folder), "wandb": {"enable": True, "mode": "offline"}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    (folder / "space.yaml").write_text(yaml.safe_dump(space(STEPS, concurrent=1)))
    command = [sys.executable, str(ROOT / "jobs" / "sweep.py"), "-e", str(folder / "spec.yaml")]
    command += ["--space", str(folder / "space.yaml")]
    environment = ray_environment | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    log = (folder / "log").open("w")
    with subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True) as process:
        end = time.monotonic() + 200
        while not list(folder.glob("tune/trial_0001/distill/model_epoch_*")):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.02)
        for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)  # trials too: they would live for a second, which is 30 steps here
    return folder


@pytest.fixture(scope="module")
def cluster(killed):
    """One Ray for what follows; the killed one is gone by then."""
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def gone_on(killed, cluster):
    before = {record.number: record for record in read_trials(killed / "tune")}
    assert [before[n].state for n in before] == [State.done, State.running]
    lines: list[str] = []
    report = tune(killed / "spec.yaml", (), space=killed / "space.yaml", say=lines.append)
    return report, before, lines


def test_nothing_is_computed_again(gone_on, killed):
    report, before, lines = gone_on
    assert any("1 of 2 trials are done; 1 continue" in line for line in lines)
    first, second = report.trials
    assert first == before[0] and [r.starts for r in report.trials] == [1, 2]
    assert all(record.state is State.done for record in report.trials)
    said = read_status(killed / "tune" / second.name / "distill" / "status.json")
    again = next(line["message"] for line in said if ": goes on from model_epoch" in line["message"])
    steps = [line["step"] for line in said if "max_step" in line]
    begun = int(again.partition(" at step ")[2].partition(" of ")[0])
    assert begun >= 5 and steps[begun - STEPS :] == list(range(begun + 1, STEPS + 1))
    assert not [
        r for r in tune(killed / "spec.yaml", (), space=killed / "space.yaml", say=lines.append).trials if r.starts > 2
    ]


def test_trials_share_teachers_answers_and_index(gone_on, killed):
    report, _, _ = gone_on
    bills = [TeacherCosts.read(killed / "tune" / r.name / "distill").teachers["vit"] for r in report.trials]
    assert bills[0].cached < bills[0].images and bills[1].cached == bills[1].images > 0
    assert bills[0].seconds > 0 == bills[1].seconds
    assert (killed / "tune" / "index" / "train").is_dir()
    assert not list((killed / "tune").glob("trial_*/index"))


def test_what_the_sweep_leaves(gone_on, killed):
    report, _, _ = gone_on
    home = killed / "tune"
    best = load_spec(home / "best.yaml")
    assert check(best) == [] and best.train.max_steps is None
    assert best.train.optim.lr in (1e-3, 3e-3)
    assert "trial_0001" in (home / "report.html").read_text() and (home / "pareto.png").stat().st_size > 5000


@pytest.mark.proof
def test_the_best_spec_runs(gone_on, killed):
    home = killed / "tune"
    assert main(["distill", "-e", str(home / "best.yaml")]) == 0
    assert read_status(killed / "best" / "distill" / "status.json")[-1]["status"] == "SUCCESS"


def test_a_run_per_trial_in_the_group_of_the_sweep(gone_on, killed):
    """Training, evaluation and objectives of a trial are one W&B run, and so are those of its starts."""
    report, _, _ = gone_on
    home, group = killed / "tune", report.plan.name
    places = {record.name: (home / record.name).glob("**") for record in report.trials} | {"sweep": [home]}
    ids, logged, made = {}, {}, {}
    for name, place in places.items():
        files = [f for folder in place if (folder / "wandb").is_dir() for f in run_files(folder, killed=True)]
        runs = [r.run for file in files for r in records(file) if r.HasField("run")]
        assert {(run.run_group, run.display_name) for run in runs} == {(group, name)}
        (ids[name],) = {run.run_id for run in runs}
        logged[name] = {key for file in files for row in history(file) for key in row}
        made[name] = [a for file in files for a in artifacts(file)]
    assert len(set(ids.values())) == 3
    for record in report.trials:
        assert {"loss", "objective/fidelity", "objective/macs"} <= logged[record.name]
        assert any("evaluate/pca" in key for key in logged[record.name])
        assert record.student.endswith(tuple(a[4]["path"].rpartition("/")[2] for a in made[record.name]))
    (best,) = made["sweep"]  # a finished sweep that was called again did not log it again
    assert best[3] and best[2] in {a[2] for record in report.trials for a in made[record.name]}


def test_another_space_is_refused(gone_on, killed):
    with pytest.raises(Exception, match="its 2 trials have another parameters"):
        tune(killed / "spec.yaml", (), space=space(STEPS, parameters={LR: [1e-3]}))
