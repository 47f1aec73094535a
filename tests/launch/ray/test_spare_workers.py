"""Spare workers, as far as no cluster is needed; tests/end_to_end/test_spares.py has the rest."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from radioplat.launch.ray.spare_workers import (
    HOOK,
    HOOK_VARIABLE,
    TITLE,
    reader_environment,
    spare_processes,
    worker_environment,
)


def test_a_hook_of_the_job_stays():
    assert worker_environment({"env_vars": {"A": "1"}}) == {"env_vars": {HOOK_VARIABLE: HOOK}}
    assert worker_environment({"worker_process_setup_hook": "its.own"}) == {}
    assert worker_environment({"env_vars": {HOOK_VARIABLE: "its.own"}}) == {}


def test_readers_have_another_environment_only_beside_spares(monkeypatch):
    monkeypatch.delenv(HOOK_VARIABLE, raising=False)
    assert reader_environment() is None
    monkeypatch.setenv(HOOK_VARIABLE, "its.own")
    assert reader_environment() is None
    monkeypatch.setenv(HOOK_VARIABLE, HOOK)
    found = reader_environment()
    assert found["env_vars"] != worker_environment({})["env_vars"] and found["env_vars"][HOOK_VARIABLE] != HOOK


def test_spares_are_known_by_their_title():
    titles = [f"{TITLE} worker test-here-", f"{TITLE} worker test-here-ready", f"{TITLE} worker test-there-ready"]
    started = [subprocess.Popen([t], executable=sys.executable, stdin=subprocess.PIPE) for t in titles]
    try:
        processes = [process.pid for process in started]
        while not all(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes):
            time.sleep(0.01)  # Popen is back as soon as exec cannot fail; the new arguments are there a little later
        assert sorted(spare_processes("test-here-")) == sorted(processes[:2])
        assert list(spare_processes("test-here-", ready=True)) == processes[1:2]
        assert set(processes) <= set(spare_processes())
    finally:
        for process in started:
            process.communicate()
    assert not list(spare_processes("test-"))
