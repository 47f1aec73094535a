"""The file for SkyPilot: its fields, by SkyPilot's own schemas, and its script, with stand-ins for its commands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.clusters.published import skypilot
from tests.clusters.test_launcher import check_no_secrets

STAND_INS = {
    "ray": 'echo ray "$@" >> "$LOG"\n[ "$1" = start ] || exec test -e "$LOG.up"\n'
    'case "$*" in *--head*) touch "$LOG.up" ;; esac; exec sleep 60',
    "radioplat": 'echo radioplat "$@" "$RAY_ADDRESS" >> "$LOG"; trap "exit 75" TERM; touch "$LOG.run"\n'
    'for _ in $(seq 300); do [ -e "$LOG.end" ] && exit $(cat "$LOG.end"); sleep 0.05; done',
}


@pytest.fixture
def task(clusters) -> dict:
    text = (clusters / "skypilot.yaml").read_text()
    check_no_secrets(text)
    return yaml.safe_load(text)


def problems(task: dict) -> list[str]:
    """What SkyPilot's schemas refuse."""
    parts = ((task, "task"), (task["resources"], "resources"))
    return [e.message for tree, name in parts for e in jsonschema.Draft7Validator(skypilot()[name]).iter_errors(tree)]


def test_skypilot_knows_every_field(task):
    assert problems(task) == []
    assert problems(task | {"number_nodes": 2}) and problems(task | {"num_nodes": "many"})
    assert problems(task | {"resources": task["resources"] | {"accelerator": "L4:4"}})
    assert problems(task | {"resources": task["resources"] | {"job_recovery": {"recover_on_exit_codes": [300]}}})


def test_only_a_stopped_run_is_started_again(task):
    assert task["resources"]["job_recovery"] == {"max_restarts_on_errors": 0, "recover_on_exit_codes": [os.EX_TEMPFAIL]}
    assert task["secrets"] == {"RAY_AUTH_TOKEN": None} and task["envs"]["RAY_AUTH_MODE"] == "token"


def test_shellcheck(task, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\n{task['run']}")
    command = [Path(sys.executable).parent / "shellcheck", "-S", "style", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def start(task, tmp_path):
    """start(rank) -> the script of a node of two, and the file of its calls."""
    binaries, log = tmp_path / "bin", tmp_path / "calls"
    binaries.mkdir()
    for name, body in STAND_INS.items():
        (binaries / name).write_text(f"#!/bin/bash\n{body}\n")
        (binaries / name).chmod(0o755)
    started = []

    def run(rank: int) -> tuple[subprocess.Popen, Path]:
        node = {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
        node |= {"SKYPILOT_NUM_GPUS_PER_NODE": "4", "LOG": str(log), "PATH": f"{binaries}:{os.environ['PATH']}"}
        command = ["bash", "-c", task["run"]]
        started.append(subprocess.Popen(command, env=os.environ | task["envs"] | node, start_new_session=True))
        return started[-1], log

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()


def wait_for(path: Path) -> None:
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("status", [0, 1])
def test_the_head_runs_the_command_and_ends_with_its_status(start, status):
    process, log = start(0)
    wait_for(log.with_name("calls.run"))
    log.with_name("calls.end").write_text(str(status))
    assert process.wait(20) == status
    calls = log.read_text().splitlines()
    assert (
        'ray start --block --head --port=6379 --dashboard-host=127.0.0.1 --resources={"radioplat_worker": 4}' in calls
    )
    command = "radioplat distill -e /shared/spec.yaml results_dir=/shared/results/run cluster.mode=ray 10.0.0.1:6379"
    assert command in calls


def test_a_signal_reaches_the_run(start):
    process, log = start(0)
    wait_for(log.with_name("calls.run"))
    process.terminate()
    assert process.wait(20) == os.EX_TEMPFAIL


def test_another_node_joins_and_ends_with_the_head(start):
    process, log = start(1)
    time.sleep(0.3)
    assert not log.exists() or "start" not in log.read_text(), "the head does not answer yet"
    log.with_name("calls.up").touch()
    wait_for(log)
    until = time.monotonic() + 20
    while '--address=10.0.0.1:6379 --resources={"radioplat_worker": 4}' not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    log.with_name("calls.up").unlink()
    assert process.wait(20) == 0
