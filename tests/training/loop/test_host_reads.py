"""How often a step waits for its device, as counted by a program that imports nothing of radioplat."""

from __future__ import annotations

import json
import subprocess
import sys


def test_a_step_reads_the_device_once_whatever_the_number_of_micro_batches():
    done = subprocess.run([sys.executable, "-m", "benchmarks.host_reads"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for found in json.loads(done.stdout.strip().splitlines()[-1]).values():
        assert found["micro_batches_a_step"] == 4 and found["steps"] >= 5
        assert found["reads_a_step"] == 1, found["reads_at"]
        assert found["reads_a_step_of_others"] > 0, "DeepSpeed's are counted too"
