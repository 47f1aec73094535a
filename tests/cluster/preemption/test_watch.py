"""The notice of a cloud's metadata service, heard over HTTP on loopback, becomes a signal or a drained node."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from radioplat.cli.main import main
from radioplat.cluster.preemption import watch as watching
from radioplat.cluster.preemption.metadata import Aws, Gcp, Notice, find_cloud
from radioplat.cluster.preemption.watch import end_process, watch
from radioplat.errors import PlacementError


class Service(BaseHTTPRequestHandler):
    """Speaks both clouds' protocols as their manuals have them; ``server.said`` is what it answers."""

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.server.tokens.append(f"token{len(self.server.tokens)}")
        self._answer(200, self.server.tokens[-1])

    def do_GET(self) -> None:
        self.server.asked += 1
        aws = self.path == "/latest/meta-data/spot/instance-action"
        if aws and self.headers["X-aws-ec2-metadata-token"] != self.server.tokens[-1]:
            return self._answer(401, "")
        if not aws and (self.headers["Metadata-Flavor"] != "Google" or not self.path.endswith("/instance/preempted")):
            return self._answer(403, "")
        self._answer(*self.server.said)

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service(monkeypatch):
    """The service of both clouds."""
    server = HTTPServer(("127.0.0.1", 0), Service)
    server.said, server.tokens, server.asked = (404, ""), [], 0
    address = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/")
    monkeypatch.setenv("GCE_METADATA_HOST", address)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # link-local addresses do not go through it
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def instance_action(seconds: float) -> tuple[int, str]:
    """What EC2 says so many seconds ahead."""
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return 200, json.dumps({"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})


def test_aws(service):
    cloud = Aws()
    assert cloud.notice() is None
    service.tokens.append("another")  # ours has expired
    assert cloud.notice() is None and len(service.tokens) == 3
    service.said = instance_action(120)
    notice = cloud.notice()
    assert 118 <= notice.seconds <= 120 and "terminate" in notice.detail
    service.said = (200, "<html>captive portal</html>")
    with pytest.raises(OSError, match="captive portal"):
        cloud.notice()


def test_gcp(service):
    service.said = (200, "FALSE")
    assert Gcp().notice() is None and find_cloud() == "gcp"  # AWS's path has no JSON there
    service.said = (200, "TRUE")
    assert 29 <= Gcp().notice().seconds <= 30


def test_a_notice_that_has_passed_leaves_no_time():
    assert Notice(time.time() - 5, "late").seconds == 0


def test_nobody_answers(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with pytest.raises(PlacementError, match="--cloud"):
        watch("auto", lambda notice: None, lambda line: None)


def test_the_watch_outlives_a_service_that_is_silent(service, monkeypatch):
    service.said, said, acted = (500, ""), [], []
    monkeypatch.setattr(watching, "_AGAIN_S", 0.01)

    def act(notice: Notice) -> None:
        acted.append(notice)
        if len(acted) < 3:
            raise PlacementError("no cluster yet")

    def say(line: str) -> None:
        said.append(line)
        if "does not answer" in line:
            service.said = instance_action(100)

    assert watch("aws", act, say, every_s=0.01).seconds > 90
    assert len(acted) == 3 and said[-1] == "done"
    assert sum("no cluster yet" in line for line in said) == 2 and "the metadata service answers again" in said


def test_time_runs_out(service, monkeypatch):
    service.said = instance_action(0.2)
    monkeypatch.setattr(watching, "_AGAIN_S", 0.05)

    def act(notice: Notice) -> None:
        raise PlacementError("no cluster")

    assert watch("aws", act, lambda line: None, every_s=0.01) is None


def test_the_command_ends_a_process(service):
    service.said = instance_action(60)
    run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        command = [sys.executable, "-m", "radioplat.cli", "nodes", "watch", "--cloud=aws", f"--process={run.pid}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0 and "will terminate this spot instance" in done.stderr, done.stderr
        assert run.wait(5) == -signal.SIGTERM
    finally:
        run.kill()
        run.wait()


def test_a_process_that_ended_before_the_notice():
    run = subprocess.Popen([sys.executable, "-c", ""])
    act = end_process(run.pid)
    run.wait()
    act(Notice(0, "it is gone already"))
    with pytest.raises(PlacementError, match=f"there is no process {run.pid}"):
        end_process(run.pid)


@pytest.mark.parametrize("pid", [-1, 0, 1, -7, 2**40])
def test_a_number_that_is_no_runs_is_refused_before_the_watch(pid, capsys, monkeypatch):
    """0 and less are groups of processes, -1 all of them; 0 was taken for no number at all."""
    monkeypatch.setattr(os, "kill", lambda *given: pytest.fail(f"kill{given}"))
    monkeypatch.setattr(watching, "drain", lambda *given: pytest.fail(f"drain{given}"))
    monkeypatch.setattr(watching, "CLOUDS", {"aws": lambda: pytest.fail("it watches")})
    assert main(["nodes", "watch", "--cloud", "aws", f"--process={pid}"]) == 1
    assert f"{pid} is not the process id of a run" in capsys.readouterr().err
