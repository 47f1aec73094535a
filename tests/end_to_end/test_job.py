"""`ray job submit -- python jobs/radio_distill.py`, against a real head with its dashboard on loopback and a token."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

import radioplat
from radioplat.track.status import read_status

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def token(tmp_path_factory) -> Path:
    """One token file for every process of this module."""
    path = tmp_path_factory.mktemp("token") / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture(scope="module")
def environment(token, ray_environment) -> dict[str, str]:
    """Of the head and of whoever speaks with it."""
    group = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # left by the local runs of other modules
    clean = {k: v for k, v in ray_environment.items() if k not in group}
    return clean | {
        "PATH": f"{BIN}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@pytest.fixture(scope="module")
def head(environment) -> str:
    """A cluster of one head; yields the dashboard's address. Ended by the ids of its own processes."""
    folder = tempfile.mkdtemp(prefix="rp-")  # short: Ray's socket names must fit in 107 bytes
    gcs, dashboard, client, agent, agent_grpc, metrics = _free_ports(6)
    command = [
        BIN / "ray", "start", "--head", "--block", "--num-cpus=6", f"--port={gcs}", "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
        f"--dashboard-agent-grpc-port={agent_grpc}", f"--metrics-export-port={metrics}", f"--temp-dir={folder}",
        "--disable-usage-stats",
    ]
    log = open(f"{folder}/head.log", "w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not _answers(dashboard):
            assert process.poll() is None and time.monotonic() < until, Path(log.name).read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for member in family:
            try:
                member.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                pass
        process.wait()
        psutil.wait_procs(family, timeout=10)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def submit(head, environment):
    """submit(*arguments, **environment) -> (exit status, output) of `ray job submit`, which waits for the job's end."""

    def run(*arguments: str, **other: str) -> tuple[int, str]:
        command = [BIN / "ray", "job", "submit", f"--address={head}", "--working-dir", ".", "--", "python",
                   "jobs/radio_distill.py", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environment | other, capture_output=True, text=True, timeout=240, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def spec_file(make_spec, tmp_path) -> Path:
    spec = make_spec("results/never", {"cluster": {"mode": "auto"}})
    spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
    del spec["teachers"]["lite0"]
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def test_a_submitted_job_trains(submit, spec_file, tmp_path):
    before = spec_file.read_bytes()
    results = tmp_path / "results"
    status, output = submit("-e", str(spec_file), f"results_dir={results}", "train.max_steps=2")
    assert status == 0 and "succeeded" in output, output
    assert "this cluster has no GPU: the run takes 1 CPU worker" in output
    assert spec_file.read_bytes() == before
    lines = read_status(results / "distill" / "status.json")
    assert lines[-1]["status"] == "SUCCESS" and [line["step"] for line in lines if "max_step" in line] == [1, 2]
    assert radioplat.load_student(results / "distill" / "model_latest").head_names == ["vit"]


def test_a_path_inside_rays_copy_is_refused(submit, spec_file):
    status, output = submit("-e", str(spec_file))
    assert status != 0
    assert "results_dir: results/never is relative" in output and "results_dir=$PWD/results/never" in output
    assert "Traceback" not in output
    assert not (ROOT / "results" / "never").exists()


def test_without_the_token_nobody_is_let_in(submit, spec_file, head, token):
    status, output = submit("-e", str(spec_file), RAY_AUTH_MODE="disabled")
    assert status != 0 and "token authentication is enabled" in output
    assert _http_status(f"{head}/api/jobs/", {}) == 401
    assert _http_status(f"{head}/api/jobs/", {"Authorization": f"Bearer {token.read_text()}"}) == 200


def _http_status(url: str, headers: dict[str, str]) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
