"""Runs are found by the leases of their results folders, and asked with SIGTERM."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from radioplat.cli.main import main
from radioplat.cluster.preemption.stop import _ask, holders, stop
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


def test_a_run_is_asked_and_awaited(start, tmp_path):
    run = start(tmp_path / "run" / "distill")
    assert [holder.pid for holder in holders(tmp_path)] == [run.pid]
    asked, left = stop(tmp_path, 20)
    assert [holder.pid for holder in asked] == [run.pid] and not left
    assert run.wait(1) == 75 and not holders(tmp_path)
    assert main(["nodes", "stop", str(tmp_path)]) == 0, "nobody is there"


def test_a_process_that_has_the_id_of_an_ended_run_is_left_alone(start, tmp_path):
    run = start(tmp_path)
    (holder,) = holders(tmp_path)
    _ask(dataclasses.replace(holder, born="1"))
    time.sleep(0.5)
    assert run.poll() is None
    _ask(holder)
    assert run.wait(20) == 75


def test_one_that_does_not_leave(start, tmp_path, capsys):
    run = start(tmp_path / "distill", "deaf")
    begin = time.monotonic()
    assert main(["nodes", "stop", str(tmp_path), "--seconds", "1"]) == 1
    assert time.monotonic() - begin < 10 and f"process {run.pid} still runs" in capsys.readouterr().err


def test_another_machines_run_is_not_ours(tmp_path):
    elsewhere = dataclasses.replace(Holder.myself(), place="another host")
    (tmp_path / NAME).write_text(json.dumps(dataclasses.asdict(elsewhere)))
    assert not holders(tmp_path)


@pytest.mark.parametrize("pid", [-1, 0, 1, "7", 2.5, None, True])
def test_a_lease_with_a_crafted_process_id_stops_nothing(tmp_path, pid, monkeypatch):
    """-1 is everybody's."""
    mine = dataclasses.asdict(Holder.myself()) | {"pid": pid, "born": "?"}
    (tmp_path / NAME).write_text(json.dumps(mine))
    monkeypatch.setattr(os, "kill", lambda *given: pytest.fail(f"kill{given}"))
    assert not holders(tmp_path)
