"""A cluster that cannot be joined is a named error within 15 seconds: what listens elsewhere, and a real head."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from forked import Forked, run_code
from ray._private.services import get_node_ip_address

from radioplat.cli import main as cli

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
QUICK_S = 15.0
# The seconds that the command takes once Python has what it imports.
PROGRAM = """
import sys, time
from radioplat.cli import main as cli
import ray, radioplat.tasks.plan.plan, radioplat.launch.driver
start = time.monotonic()
status = cli.main(sys.argv[1:])
print("seconds", time.monotonic() - start)
sys.exit(status)
"""
Command = Callable[..., tuple[int, str, float]]


@pytest.fixture
def spec_file(make_spec, tmp_path) -> Path:
    """A spec of a run that goes to a cluster where one is there."""
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(make_spec(tmp_path / "results", {"cluster": {"mode": "auto"}})))
    return file


@pytest.fixture
def command(spec_file, ray_environment) -> Command:
    """command(task, *overrides, **variables) -> (exit status, output, seconds) of a task on one spec."""
    clean = {name: value for name, value in ray_environment.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}

    def run(task: str, *overrides: str, **variables: str) -> tuple[int, str, float]:
        process = Forked(run_code, PROGRAM, task, "-e", str(spec_file), *overrides, environment=clean | variables)
        try:
            status, output = process.wait(200), process.output
        finally:
            process.kill()
        assert "Traceback" not in output, output
        return status, output, float(re.search(r"seconds (\S+)", output)[1])

    return run


@pytest.fixture
def command_here(spec_file, capfd) -> Command:
    """As ``command``, in this process."""

    def run(task: str, *overrides: str) -> tuple[int, str, float]:
        start = time.monotonic()
        status = cli.main([task, "-e", str(spec_file), *overrides])
        seconds, output = time.monotonic() - start, "".join(capfd.readouterr())
        assert "Traceback" not in output, output
        return status, output, seconds

    return run


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Something that takes connections and never says a word."""
    with socket.create_server((get_node_ip_address(), 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("task", ["plan", "distill"])
def test_nobody_listens(command_here, tmp_path, task):
    status, output, seconds = command_here(task, "cluster.address=127.0.0.1:1")
    assert status == 1 and seconds < QUICK_S, (seconds, output)
    assert "cluster.address: no Ray cluster can be reached at 127.0.0.1:1" in output
    assert "ray start --head --port=1" in output
    assert not (tmp_path / "results" / "distill").exists(), "nothing was begun"


def test_what_listens_never_answers(command_here, monkeypatch):
    with silent() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        status, output, seconds = command_here("distill")
    assert status == 1 and seconds < QUICK_S, (seconds, output)
    assert f"RAY_ADDRESS: {address} does not answer" in output


class Head:
    """A cluster of one node that `ray start` made while a token lay in the home folder.

    Attributes:
        address: of its GCS.
        environment: of its processes: the home folder, and where it notes its address.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        (folder / "home" / ".ray").mkdir(parents=True)
        token = folder / "home" / ".ray" / "auth_token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {"HOME": str(folder / "home"), "RAY_TMPDIR": str(folder)}
        with socket.create_server((get_node_ip_address(), 0)) as free:
            host, port = free.getsockname()
        self.address, self.log = f"{host}:{port}", folder / "head.log"
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
        clean = {k: v for k, v in environment.items() if k not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
        with open(self.log, "w") as log:
            self._process = subprocess.Popen(
                [*ray, f"--port={port}", "--num-cpus=4", "--num-gpus=3", "--include-dashboard=false"],
                env=clean | self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it has started."""
        until = time.monotonic() + 90
        while "Ray runtime started" not in self.log.read_text():
            assert self._process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.2)

    def process(self, name: str) -> psutil.Process:
        """One of its processes."""
        return next(p for p in psutil.Process(self._process.pid).children(recursive=True) if p.name() == name)

    def close(self) -> None:
        """End its own processes."""
        if self._process.poll() is not None:  # it did not start, and that is the error to see
            return
        family = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(family, timeout=10)


@pytest.fixture(scope="module")
def head(ray_environment) -> Iterator[Head]:
    """One for the tests that follow."""
    folder = Path(tempfile.mkdtemp(prefix="rp-"))  # short: Ray's socket names must fit in 107 bytes
    made = Head(folder, ray_environment)
    try:
        made.wait()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.proof
def test_a_token_that_is_not_sent(command, head):
    named = f"cluster.address={head.address}"
    status, output, seconds = command("distill", named, **head.environment)
    assert status == 1 and seconds < QUICK_S, (seconds, output)
    assert "requires a token" in output and "export RAY_AUTH_MODE=token" in output
    other = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    status, output, seconds = command("plan", named, **head.environment, **other)
    assert status == 1 and seconds < QUICK_S, (seconds, output)
    assert "does not accept the token" in output and "RAY_AUTH_TOKEN_PATH" in output
    status, output, _ = command("plan", named, **head.environment, RAY_AUTH_MODE="token")
    assert status == 0 and "this run can start" in output, output


def test_the_cluster_of_this_machine_gets_the_token_unasked(command, head):
    status, output, _ = command("plan", "train.num_gpus=4", "cluster.cpus_per_worker=3", **head.environment)
    assert status == 1 and "the cluster can have at most 4" in output and "train.num_gpus" in output, output
    assert re.search(r"takes \d+ GPUs and the cluster can have at most 3", output), output


def test_a_head_that_hangs(command, head):
    gcs = head.process("gcs_server")
    gcs.suspend()
    try:
        variables = head.environment | {"RAY_AUTH_MODE": "token", "RAY_ADDRESS": head.address}
        status, output, seconds = command("distill", **variables)
    finally:
        gcs.resume()
    assert status == 1 and seconds < QUICK_S, (seconds, output)
    assert f"RAY_ADDRESS: {head.address} does not answer" in output


def test_another_version(command, head):
    """As a head of another environment notes it."""
    note = (
        "import json, sys, ray\n"
        "client = ray._raylet.GcsClient(address=sys.argv[1])\n"
        "old = json.loads(client.internal_kv_get(b'CLUSTER_METADATA', namespace=b'cluster'))\n"
        "new = json.dumps(old | {'ray_version': '2.9.0'}).encode()\n"
        "client.internal_kv_put(b'CLUSTER_METADATA', new, True, namespace=b'cluster')\n"
    )
    variables = head.environment | {"RAY_AUTH_MODE": "token"}
    noted = Forked(run_code, note, head.address, environment=os.environ | variables)
    assert noted.wait(60) == 0, noted.output
    status, output, seconds = command("plan", f"cluster.address={head.address}", **variables)
    assert status == 1 and seconds < QUICK_S, (seconds, output)
    assert "runs Ray 2.9.0" in output
