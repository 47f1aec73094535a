"""What a step sends and launches, as counted by a program that imports nothing of radioplat."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CASE = "deepspeed with average"


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_step_sends_and_launches_no_more_for_more_parameters_or_losses():
    command = [sys.executable, "-m", "benchmarks.step_counts", "--no-time", "--case", CASE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])[CASE]
    assert found["micro_batches_a_step"] == 4 and found["steps"] >= 5
    # The sums of the step, and the whole average in one piece; gradients are DeepSpeed's.
    assert found["collectives_a_step"] == 2, found["collectives_at"]
    assert found["collectives_a_step_of_others"] > 0, "DeepSpeed's are counted too"
    # The student has about 300 parameters: copying each by itself would be 75 a micro-batch.
    assert found["launches"]["loop"] < 20, found["most_frequent"]["loop"]
    assert found["launches"]["student"] > 200 and found["launches"]["backward"] > 200, "the student's are counted too"
