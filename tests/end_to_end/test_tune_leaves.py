"""A sweep that is told to stop, and one whose node goes: trials that train save, and nothing is lost or counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from benchmarks.ledger_rows import read_consumed
from clusters.local import LocalCluster
from radioplat.tasks.tune.trial_record import State, read_trials
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import newest

pytestmark = [pytest.mark.proof, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
NEVER = 100_000  # steps between checkpoints that fall due by themselves
SPACE = {
    "task": "distill",
    "parameters": {"train.optim.lr": {"grid": [1e-3, 3e-3, 1e-4]}},
    "objectives": [{"metric": "fidelity"}, {"metric": "macs", "mode": "min"}],
    "search": {"algorithm": "grid"},
    "share_teachers": False,
    "concurrent": 2,
    "max_failures": 1,
}


@pytest.fixture
def start(make_spec, tmp_path, ray_environment):
    """start(steps, **environment): the sweep's command."""
    spec = make_spec(tmp_path)
    spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
    del spec["teachers"]["lite0"]
    spec["train"] |= {"checkpoint_interval": NEVER, "num_epochs": NEVER}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    begun = []

    def run(steps: int, **environment: str) -> subprocess.Popen:
        (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
        command = [sys.executable, str(ROOT / "jobs" / "sweep.py"), "-e", str(tmp_path / "spec.yaml")]
        command += [f"train.max_steps={steps}"]
        with open(tmp_path / "said", "a") as said:
            begun.append(
                subprocess.Popen(
                    [*command, "--space", str(tmp_path / "space.yaml")],
                    env=ray_environment | {"PYTHONPATH": str(ROOT)} | environment,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            )
        return begun[-1]

    yield run
    for process in begun:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def wait_for(condition, process: subprocess.Popen, folder: Path, seconds: float = 150.0) -> None:
    """Until ``condition()``, while the sweep runs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None, (folder / "said").read_text()
        time.sleep(0.1)


def steps_of(trial: Path) -> list[int]:
    """The steps that a trial's ``status.json`` tells of, over all its starts."""
    file = trial / "distill" / "status.json"
    return [line["step"] for line in read_status(file) if "max_step" in line] if file.exists() else []


def saved(trial: Path) -> int:
    """The step of its one checkpoint, which is the last that it took."""
    assert len(list((trial / "distill").glob("model_epoch_*"))) == 1
    step = newest(trial / "distill")[1].global_step
    assert step == max(read_consumed(trial / "distill" / "ledger")["step"].to_pylist()) + 1
    return step


def test_sigterm(start, tmp_path):
    home = tmp_path / "tune"
    trials = [home / f"trial_{number:04d}" for number in range(2)]
    process = start(NEVER)
    wait_for(lambda: all(len(steps_of(trial)) >= 3 for trial in trials), process, tmp_path)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == os.EX_TEMPFAIL, (tmp_path / "said").read_text()
    assert time.monotonic() - begin < 60
    done = [saved(trial) for trial in trials]
    records = read_trials(home)
    assert [r.state for r in records] == [State.running] * 2, "the third has not begun"
    assert not list(home.glob(".stop.*"))
    last = read_status(home / "status.json")[-1]
    assert "stopped by SIGTERM" in last["message"] and last["status"] == "RUNNING"

    again = start(max(done) + 2)
    assert again.wait(240) == 0, (tmp_path / "said").read_text()
    assert [r.state for r in read_trials(home)] == [State.done] * 3
    for trial, step in zip(trials, done, strict=True):
        assert steps_of(trial) == list(range(1, max(done) + 3)), "each step once"
        assert [e.cause for e in Attempts(trial / "distill").read() if e.event == "end"] == ["stopped", "done"]
        assert step >= 3


def test_interrupt(start, tmp_path):
    process = start(NEVER)
    wait_for(lambda: len(steps_of(tmp_path / "tune" / "trial_0000")) >= 3, process, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 130, (tmp_path / "said").read_text()


def test_nodes_go(start, tmp_path, monkeypatch):
    """One trial a node; the trial whose node gets notice saves, and goes on on the node that comes. Twice: more often
    than failures are accepted."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    home = tmp_path / "tune"
    with LocalCluster(2, head_cpus=0, node_cpus=1, places=0, dashboard=True) as cluster:
        process = start(NEVER, RAY_ADDRESS=cluster.address)
        trials = [home / f"trial_{number:04d}" for number in range(2)]
        wait_for(lambda: all(len(steps_of(trial)) >= 3 for trial in trials), process, tmp_path)
        going = 1
        for starts in (2, 3):
            before = [newest(trial / "distill") for trial in trials]
            comes = cluster.add()
            cluster.drain(going, 60)
            wait_for(lambda: before != [newest(trial / "distill") for trial in trials], process, tmp_path)  # noqa: B023
            gone = next(t for t, had in zip(trials, before, strict=True) if newest(t / "distill") != had)
            step = newest(gone / "distill")[1].global_step
            wait_for(lambda: steps_of(gone)[-1] > step + 2, process, tmp_path)  # noqa: B023
            assert steps_of(gone) == list(range(1, len(steps_of(gone)) + 1)), "each step once"
            record = next(r for r in read_trials(home) if r.name == gone.name)
            assert record.starts == starts and record.state is State.running, "no failure was counted"
            going = comes
        assert sum(r.starts for r in read_trials(home)) == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == os.EX_TEMPFAIL, (tmp_path / "said").read_text()
