"""What a scheduler sees of a cluster that does not answer; tests/end_to_end/test_job.py submits to a real one."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from radioplat.cluster import submission
from radioplat.errors import ClusterError, SpecError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_first_contact_that_fails_is_no_reason_to_try_for_ever():
    """As a process: Kubernetes and Slurm begin a command again that ends with 75."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "jobs/submit.py", "--address", address, "--", "true"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert address in done.stderr and "http://HEAD:8265" in done.stderr and "Traceback" not in done.stderr


def test_a_dashboard_that_hangs(monkeypatch):
    monkeypatch.setattr(submission, "_ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        start = time.monotonic()
        with pytest.raises(ClusterError, match="does not answer"):
            submission.submit(["true"], f"http://127.0.0.1:{server.getsockname()[1]}")
    assert time.monotonic() - start < 5


def test_a_cluster_that_starts_is_waited_for(monkeypatch, capfd):
    """It answers at last, and is no dashboard: that is said at once."""
    monkeypatch.setattr(submission, "_PAUSE_S", 0.1)
    port = free_port()
    late = threading.Timer(1.0, lambda: servers.append(_serve(port)))
    servers: list[http.server.HTTPServer] = []
    late.start()
    start = time.monotonic()
    try:
        with pytest.raises(ClusterError, match="refuses the connection: .*404"):
            submission.submit(["true"], f"http://127.0.0.1:{port}", wait_s=30)
        assert 0.9 < time.monotonic() - start < 20
        assert "waiting up to 30 s" in capfd.readouterr().err
    finally:
        late.join()
        for server in servers:
            server.shutdown()
            server.server_close()


def _serve(port: int = 0, answers: dict[tuple[str, str], object] | None = None) -> http.server.HTTPServer:
    """JSON by method and path; 404 for everything else."""

    class Dashboard(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if (self.command, self.path) not in (answers or {}):
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[self.command, self.path]).encode())

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", port), Dashboard)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.mark.parametrize("takes_it", [True, False])
def test_a_head_that_begins_anew_is_lost_and_one_that_refuses_the_job_is_not(takes_it, capfd):
    """Only what was submitted is to be begun again."""
    answers = {("GET", "/api/version"): {"ray_version": ray.__version__, "version": "4"}, ("GET", "/api/jobs/"): []}
    if takes_it:
        answers["POST", "/api/jobs/"] = {"job_id": "a", "submission_id": "a"}
    server = _serve(0, answers)
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        if takes_it:
            assert submission.submit(["true"], address) == os.EX_TEMPFAIL
            assert "the cluster was lost" in capfd.readouterr().err
        else:
            with pytest.raises(ClusterError, match="rejects the job"):
                submission.submit(["true"], address)
    finally:
        server.shutdown()
        server.server_close()


def test_a_runtime_env_that_is_none(tmp_path):
    with pytest.raises(SpecError, match="--runtime-env"):
        submission.submit(["true"], None, runtime_env=tmp_path / "none.yaml")
