"""What the doctor says of a machine: this one as it is, and findings on what is made for it here."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from radioplat.cluster.doctor.finding import Level
from radioplat.cluster.doctor.gpu import Driver, driver_fits, gpu, nccl_interface
from radioplat.cluster.doctor.limits import descriptors, memory, shared_memory
from radioplat.cluster.doctor.ports import listeners, open_dashboard, token
from radioplat.cluster.doctor.storage import clock, results_folder, spill_disk
from radioplat.cluster.doctor.versions import constraints_file, pins, requirements

GB = 10**9


def doctor(*arguments: str) -> tuple[int, dict]:
    """Exit status and findings of the command."""
    command = [sys.executable, "-m", "radioplat.cli", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def test_this_machine(tmp_path):
    status, told = doctor("--results", str(tmp_path / "not" / "there" / "yet"))
    by_name = {finding["what"]: finding for finding in told["findings"]}
    assert by_name["results_dir"]["said"].startswith(str(tmp_path))
    assert {"GPU", "open files (ulimit -n)", "shared memory (/dev/shm)", "clock", "Ray's ports", "token"} <= set(
        by_name
    )
    assert status == (not told["fit"]) == any(f["level"] == "fail" for f in told["findings"])
    assert all(f["hint"] for f in told["findings"] if f["level"] != "ok"), "what is wrong says what to do"
    assert "a check" not in by_name
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_what_fails_is_in_the_exit_status():
    status, told = doctor("--results", "/proc/results")
    assert status == 1 and not told["fit"]
    assert next(f for f in told["findings"] if f["what"] == "results_dir")["level"] == "fail"


@pytest.mark.parametrize(
    ("soft", "level"), [(1024, "fail"), (20000, "warn"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_descriptors(soft, level):
    assert descriptors((soft, soft)).level == level


@pytest.mark.parametrize(("size", "level"), [(64 * 2**20, "fail"), (8 * GB, "warn"), (20 * GB, "ok")])
def test_shared_memory(size, level):
    found = shared_memory(size, 64 * GB)
    assert found.level == level and (level == "ok" or "--shm-size=19g" in found.hint)


def test_memory_is_no_more_than_the_machine_has():
    assert 0 < memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(("used", "level"), [(100, "ok"), (990, "fail"), (940, "ok")])
def test_the_disk_of_spilled_objects(used, level):
    assert spill_disk("/tmp", 1000 * GB, used * GB, (1000 - used) * GB).level == level


def test_storage_and_clock(tmp_path):
    levels = {finding.item: finding.level for finding in results_folder(tmp_path)}
    assert levels["clock of the storage"] is Level.ok
    assert clock().level in (Level.ok, Level.warn)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["numpy>=1"], "all that radioplat needs"),
        (["numpy>=1000"], "is not >=1000"),
        (["no-such-package-at-all"], "no-such-package-at-all is missing"),
        (["no-such-package-at-all; extra == 'test'"], "all that radioplat needs"),
    ],
)
def test_requirements(lines, said):
    assert said in requirements(lines).state


def test_pins():
    here = metadata.version("numpy")
    assert pins(f"# numpy==0\nnumpy=={here}\nno-such-package-at-all==1\n").level is Level.ok
    found = pins("numpy==0.1\n")
    assert found.level is Level.warn and f"numpy {here} instead of 0.1" in found.state
    assert constraints_file() == Path(__file__).parents[3] / "constraints.txt"


@pytest.fixture
def serve():
    """serve(status, host) -> the port of an HTTP server that answers so."""
    servers = []

    def run(status: int, host: str = "127.0.0.1") -> int:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer((host, 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        return servers[-1].server_port

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "host", "level"),
    [(200, "0.0.0.0", "fail"), (200, "127.0.0.1", "warn"), (401, "0.0.0.0", "ok"), (404, "0.0.0.0", None)],
)
def test_a_dashboard_that_is_open(serve, status, host, level):
    port = serve(status, host)
    found = list(open_dashboard(port, listeners()[port]))
    assert [finding.level for finding in found] == ([level] if level else [])


def test_who_listens():
    with socket.create_server(("127.0.0.1", 0)) as inside, socket.create_server(("0.0.0.0", 0)) as outside:
        used = listeners()
        assert used[inside.getsockname()[1]] is False and used[outside.getsockname()[1]] is True
        ports = inside.getsockname()[1], outside.getsockname()[1]
    assert not set(ports) & set(listeners())
    if socket.has_ipv6:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
            assert listeners()[six.getsockname()[1]] is False


def test_token(tmp_path):
    path = tmp_path / "token"
    on = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    assert token({}).level is Level.warn and token(on).level is Level.fail
    path.write_text("")
    assert "is empty" in token(on).state
    path.write_text("a" * 64)
    path.chmod(0o644)
    assert token(on).level is Level.warn and "chmod 600" in token(on).hint
    path.chmod(0o600)
    assert token(on).level is Level.ok and "a" * 64 not in token(on).state
    assert token({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}).state == "from RAY_AUTH_TOKEN"


@pytest.mark.parametrize(
    ("version", "cuda", "level"),
    [("580.65.06", "13.0", "ok"), ("570.172", "13.0", "fail"), ("570.172", "12.8", "ok"), ("610.1", "14.0", "ok")],
)
def test_drivers(version, cuda, level):
    assert driver_fits(Driver(version, "13.0", ("NVIDIA L4",)), cuda).level == level


def test_interfaces():
    assert not list(nccl_interface("")) and not list(nccl_interface("lo")) and not list(nccl_interface("=lo,eth9"))
    assert not list(nccl_interface("^docker"))
    assert [f.level for f in nccl_interface("nosuch")] == [f.level for f in nccl_interface("=l")] == [Level.fail]


@pytest.mark.gpu
def test_a_gpu_and_its_driver():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from radioplat.cluster.doctor.gpu import driver

    found = {finding.item: finding for finding in gpu(driver())}
    assert found["GPU"].state.startswith(f"{torch.cuda.device_count()} x ") and found["driver"].level is Level.ok
    assert found["NCCL"].level is Level.ok
