"""The Slurm script, run by bash with stand-ins for Slurm's and Ray's commands, which write down how they are called."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# sbatch(1), long options.
OPTIONS = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "exclusive", "time", "signal", "requeue",
    "open-mode", "output",
}  # fmt: skip
STAND_INS = {
    "scontrol": 'echo scontrol "$@" >> "$LOG"; [ "$1" = show ] && printf "a\\nb\\nc\\n"; true',
    "srun": 'echo srun "$@" >> "$LOG"; exec sleep 60',
    "ray": 'echo ray "$@" >> "$LOG"',
    "radioplat": 'echo radioplat "$@" "$RAY_ADDRESS" >> "$LOG"; trap "sleep 0.2; exit 75" TERM; echo up >> "$LOG"\n'
    'for _ in $(seq 300); do [ -e "$LOG.end" ] && exit $(cat "$LOG.end"); sleep 0.05; done',
}


@pytest.fixture
def job(clusters, tmp_path):
    """The batch script, started; and what was called."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, body in STAND_INS.items():
        (binaries / name).write_text(f"#!/bin/bash\n{body}\n")
        (binaries / name).chmod(0o755)
    log = tmp_path / "calls"
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "LOG": str(log),
        "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NODELIST": "[a-c]",
        "SLURM_GPUS_ON_NODE": "8",
    }
    process = subprocess.Popen(
        [clusters / "slurm.sh", "-e", "spec.yaml"], env=environment, start_new_session=True, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 20
    while "up" not in (log.read_text().split() if log.exists() else []):
        assert time.monotonic() < until and process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    yield process, log
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def test_a_signal_becomes_a_requeue(job):
    process, log = job
    process.send_signal(signal.SIGTERM)  # --signal=B: the batch shell alone
    assert process.wait(10) == 75
    calls = log.read_text().splitlines()
    assert calls[-1] == "scontrol requeue 4242"
    head, others = sorted((c for c in calls if c.startswith("srun")), key=lambda c: "--head" not in c)
    assert "--nodelist=a " in head and "--port=24242" in head and "--dashboard-host=127.0.0.1" in head
    assert "--nodes=2 --ntasks=2 --nodelist=b,c" in others and "--address=a:24242" in others
    assert head.endswith('--resources={"radioplat_worker": 8}') and others.endswith('{"radioplat_worker": 8}')
    assert "radioplat distill -e spec.yaml cluster.mode=ray a:24242" in calls


@pytest.mark.parametrize("status", [0, 1])
def test_an_end_is_an_end(job, status):
    process, log = job
    Path(f"{log}.end").write_text(str(status))
    assert process.wait(10) == status
    assert "requeue" not in log.read_text()


def test_options_are_sbatchs(clusters):
    text = (clusters / "slurm.sh").read_text()
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))
    assert set(given) == OPTIONS and given["signal"] == "B:TERM@120"
    assert "RAY_AUTH_MODE=token" in text


@pytest.mark.parametrize("name", ["slurm", "local"])
def test_shellcheck(clusters, name):
    command = [Path(sys.executable).parent / "shellcheck", clusters / f"{name}.sh"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
