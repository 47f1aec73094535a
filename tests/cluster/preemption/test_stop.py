"""Runs are found by the leases of their results folders, and asked with SIGTERM."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from radioplat.cli.main import main
from radioplat.cluster.preemption import stop as stopping
from radioplat.cluster.preemption.stop import stop
from radioplat.tracking.lease import NAME, Holder

RUN = """
import signal, sys, time
from pathlib import Path
from radioplat.tracking.lease import Lease

def leave(number, frame):
    if sys.argv[2] == "heeds":
        time.sleep(0.3)  # it saves
        sys.exit(75)

signal.signal(signal.SIGTERM, leave)
with Lease(Path(sys.argv[1]), print):
    print("up", flush=True)
    time.sleep(60)
"""

# In a process namespace of its own, where the next number can be chosen.
REUSE = """
import dataclasses, json, subprocess, sys, time
from pathlib import Path
from radioplat.cluster.preemption.stop import stop
from radioplat.tracking import lease

run, bystander = subprocess.Popen(["sleep", "60"]), None
real = lease.Holder.is_gone

def is_gone(holder):
    global bystander
    ended = real(holder)
    if bystander is None:
        assert not ended
        run.kill()
        run.wait()
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(run.pid - 1))
        bystander = subprocess.Popen(["sleep", "60"])
        assert bystander.pid == run.pid
    return ended

holder = dataclasses.replace(lease.Holder.myself(), pid=run.pid, born=lease._born(run.pid))
(Path(sys.argv[1]) / lease.NAME).write_text(json.dumps(dataclasses.asdict(holder)))
lease.Holder.is_gone = is_gone
stop(Path(sys.argv[1]), 0)
time.sleep(0.3)
print("the bystander lives" if bystander.poll() is None else f"the bystander got signal {-bystander.returncode}")
bystander.kill()
"""


@pytest.fixture
def start():
    """start(folder, what): a process that holds the lease of ``folder``."""
    begun = []

    def run(folder: Path, what: str = "heeds") -> subprocess.Popen:
        begun.append(subprocess.Popen([sys.executable, "-c", RUN, folder, what], stdout=subprocess.PIPE, text=True))
        assert begun[-1].stdout.readline() == "up\n"
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
        process.wait()


def put(folder: Path, **fields: object) -> None:
    """A lease of this process in ``folder``, with other fields; None leaves a field out."""
    record = dataclasses.asdict(Holder.myself()) | fields
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(json.dumps({name: value for name, value in record.items() if value is not None}))


@pytest.fixture
def bystander():
    """A process that is no run, and when it started."""
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    process.stdout.readline()
    yield process, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    process.kill()
    process.communicate()


def test_a_run_is_asked_and_awaited(start, tmp_path):
    run = start(tmp_path / "run" / "distill")
    found = stop(tmp_path, 20)
    assert [holder.pid for holder in found.signalled] == [run.pid] and not found.remaining and not found.problems
    assert run.wait(1) == 75 and stop(tmp_path, 0) == stopping.Stopped()
    assert main(["nodes", "stop", str(tmp_path)]) == 0, "nobody is there"


def test_one_that_does_not_leave(start, tmp_path, capsys):
    run = start(tmp_path / "distill", "deaf")
    begin = time.monotonic()
    assert main(["nodes", "stop", str(tmp_path), "--seconds", "1"]) == 1
    assert time.monotonic() - begin < 10 and f"process {run.pid} still runs" in capsys.readouterr().err


def test_another_machines_run_is_not_ours(tmp_path, bystander):
    process, born = bystander
    put(tmp_path, place="another host", pid=process.pid, born=born)
    assert stop(tmp_path, 0) == stopping.Stopped() and process.poll() is None


def test_a_process_that_gets_the_number_before_the_signal_does_not_get_the_signal(tmp_path):
    """The run ends after its lease was compared with its process, and a process that is no run gets its number."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("process numbers cannot be chosen here: no user and process namespaces")
    done = subprocess.run(
        [*command, sys.executable, "-c", REUSE, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and done.stdout == "the bystander lives\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("pid", pid) for pid in (-1, 0, 1, -7, "7", 2.5, None, True, 10**30)),
        ("born", None),
        ("born", "?"),
        ("born", 7),
        ("place", 3),
        ("since", "yesterday"),
        ("since", 1e300),
    ],
)
def test_a_record_that_does_not_tell_one_process_stops_nothing_and_is_named(
    tmp_path, bystander, start, field, value, monkeypatch, capsys
):
    """-1 is everybody; without a start, as versions before wrote it, a number may be another process's by now."""
    process, born = bystander
    put(tmp_path / "a", **{"pid": process.pid, "born": born, field: value})
    run = start(tmp_path / "b")
    real = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: real(pid, number) if pid == run.pid else pytest.fail(f"{pid}"))
    assert main(["nodes", "stop", str(tmp_path)]) == 1
    assert f"{tmp_path / 'a' / NAME}: " in capsys.readouterr().err and process.poll() is None
    assert run.wait(1) == 75, "the others are asked all the same"


def test_a_number_used_again_is_left_alone(tmp_path, bystander):
    process, born = bystander
    put(tmp_path, pid=process.pid, born=str(int(born) - 1))
    assert stop(tmp_path, 0) == stopping.Stopped() and process.poll() is None
    assert main(["nodes", "stop", str(tmp_path)]) == 0
