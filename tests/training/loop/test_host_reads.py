"""How often a step waits for its device, as counted by a program that imports nothing of radioplat."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.proof
def test_a_step_reads_the_device_as_often_whatever_the_number_of_micro_batches():
    done = subprocess.run([sys.executable, "-m", "benchmarks.host_reads"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = json.loads(done.stdout.strip().splitlines()[-1])
    for name, found in cases.items():
        assert found["micro_batches_a_step"] == 4 and found["steps"] >= 5
        # Four reads would be one a micro-batch. Where transforms are computed anew there are many, every second step.
        often = {place for place, count in found["reads_at"].items() if count >= 4 and "transforms" not in place}
        assert not often, (name, often)
    for name in ("vit", "cnn"):
        assert cases[name]["reads_a_step"] == 1, cases[name]["reads_at"]
        assert cases[name]["reads_a_step_of_others"] > 0, "DeepSpeed's are counted too"
    ours = {place.split()[1].rpartition(":")[0].rpartition("/")[2] for place in cases["vit, ddp"]["reads_at"]}
    assert ours == {"step_sums.py", "exact_gradients.py", "ddp_engine.py"}, "sums, the norm, torch's step counts"
