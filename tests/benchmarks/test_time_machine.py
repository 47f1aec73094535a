"""The benchmark of replay and fork, whole: its judge reads the files that they leave."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.proof
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_replays_are_the_recorded_steps_and_forks_see_the_same_samples(tmp_path):
    command = [sys.executable, "-m", "benchmarks.time_machine", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["replay_loss_difference"] == figures["replay_across_world_sizes"] == 0
    assert figures["replay_fast_per_step"] <= 1e-5
    assert figures["pixels_equal"] == figures["fork_ids_equal"] == figures["fork_control_equal"] == 1
    assert figures["lineage_images_vs_ledger"] == 1
    assert figures["teacher_removed_and_added"] and figures["runs_unchanged"] == 1
    assert figures["after_kill"] == {"replay": 0, "fork_ids_equal": 1} and not any(figures["exit_statuses"])
