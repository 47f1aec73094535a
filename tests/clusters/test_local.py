"""A cluster of one machine that is interrupted while it starts leaves no process behind."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

PROGRAM = """
import signal, sys
from clusters.local import LocalCluster
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("up", flush=True)
LocalCluster(nodes=2)
print("started", flush=True)
"""


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["gcs_server", "raylet/raylet"])
def test_a_cluster_that_is_interrupted_at_its_start_ends(part):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        me, limit = psutil.Process(process.pid), time.monotonic() + 120
        below: list[psutil.Process] = []
        while not any(part in " ".join(each.cmdline()) for each in below if each.is_running()):
            assert time.monotonic() < limit and process.poll() is None
            below = me.children(recursive=True)
            time.sleep(0.02)
        process.terminate()
        assert process.wait(120) == 143
        assert "started" not in process.stdout.read()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive
