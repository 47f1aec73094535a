"""The Slurm script, run by bash with stand-ins for Slurm's and Ray's commands, which write down how they are called."""

from __future__ import annotations

import contextlib
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
def environment(tmp_path) -> dict[str, str]:
    """The stand-ins, and what Slurm sets; LOG is where calls are written down."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, body in STAND_INS.items():
        (binaries / name).write_text(f"#!/bin/bash\n{body}\n")
        (binaries / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NODELIST": "[a-c]",
        "SLURM_GPUS_ON_NODE": "8",
    }


@pytest.fixture
def job(clusters, environment):
    """The batch script, started; and what was called."""
    log = Path(environment["LOG"])
    process = subprocess.Popen(
        [clusters / "slurm.sh", "-e", "spec.yaml"], env=environment, start_new_session=True, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 20
    while "up" not in (log.read_text().split() if log.exists() else []):
        assert time.monotonic() < until and process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    yield process, log
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
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


def test_a_head_that_never_answers_is_a_named_end(clusters, environment, tmp_path):
    """As `ray health-check` does for a closed port: it takes longer than anyone wants, and fails."""
    (tmp_path / "bin" / "ray").write_text('#!/bin/bash\n[ "$1" = health-check ] && sleep 1; exit 1\n')
    done = subprocess.run(
        [clusters / "slurm.sh", "-e", "spec.yaml"],
        env=environment | {"HEAD_PATIENCE": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1 and "the head on a does not answer" in done.stderr
    calls = (tmp_path / "calls").read_text()
    assert "requeue" not in calls and "radioplat distill" not in calls


def test_rays_folder_is_in_a_private_one_with_a_random_name(clusters, environment, tmp_path):
    """Ray opens its temporary folder to all users, and everybody knows the number of a job."""
    srun = 'echo srun "$@" >> "$LOG"; while [[ $1 == --* ]]; do shift; done; "$@"; exec sleep 60'  # on one node of each
    (tmp_path / "bin" / "srun").write_text(f"#!/bin/bash\n{srun}\n")
    ray = 'echo ray "$@" >> "$LOG"; until grep -qc "ray start --block.*--address" "$LOG"; do sleep 0.05; done'
    (tmp_path / "bin" / "ray").write_text(f'#!/bin/bash\n[ "$1" = start ] || exit 0\n{ray}\n')
    (tmp_path / "bin" / "radioplat").write_text(
        '#!/bin/bash\nfor _ in {1..200}; do [ "$(grep -c "^ray start" "$LOG")" = 2 ] && break; sleep 0.05; done\n'
    )
    done = subprocess.run([clusters / "slurm.sh"], env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    folders = re.findall(r"^ray start .*--temp-dir=(\S+)", Path(environment["LOG"]).read_text(), re.MULTILINE)
    assert len(set(folders)) == 2, "the head's and another node's"
    for folder in map(Path, folders):
        state = folder.parent.stat()
        assert state.st_uid == os.getuid() and state.st_mode & 0o777 == 0o700 and "4242" not in str(folder)
        assert not folder.exists() and len(str(folder)) < 24
        folder.parent.rmdir()


@pytest.mark.parametrize(
    ("given", "called"),
    [
        (
            ["tune", "-e", "spec.yaml", "--space", "s.yaml"],
            "radioplat tune -e spec.yaml --space s.yaml cluster.mode=ray",
        ),
        (["teachers", "start", "-e", "spec.yaml"], "radioplat teachers start -e spec.yaml cluster.mode=ray"),
        ([], "radioplat distill cluster.mode=ray"),
    ],
)
def test_any_task_runs(clusters, environment, given, called):
    Path(f"{environment['LOG']}.end").write_text("0")
    done = subprocess.run(
        [clusters / "slurm.sh", *given], env=environment, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{called} a:24242" in Path(environment["LOG"]).read_text().splitlines()


@pytest.mark.parametrize("status", [0, 1, 70])
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
