"""Bytes on their way to a device, as counted by a program that imports nothing of radioplat."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_no_byte_is_copied_from_pageable_memory_or_by_the_training_thread():
    command = [sys.executable, "-m", "benchmarks.host_copies"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stderr[-3000:]
    counted = json.loads(done.stdout.strip().splitlines()[-1])
    for part in counted.values():
        assert part["micro_batches"] >= 20 and part["bytes"] > 40_000 and part["bytes_to_host"] > 3_000
        for name in ("unpinned_bytes", "unpinned_bytes_to_host", "training_thread_bytes", "bytes_waited_for"):
            assert part[name] == 0, (name, part["at"])
        assert part["errors_of_order"] == {} and part["device_waits"] == 0
    assert counted["feed"]["threads_that_chose_the_device"] == ["feeder", "prefetch"]
