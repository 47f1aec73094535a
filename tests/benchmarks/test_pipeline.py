"""The benchmark of pipelines: its judge reads the files that they leave."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def figures(*options: str) -> dict:
    """The last line of the benchmark."""
    command = [sys.executable, "-m", "benchmarks.pipeline", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_no_finished_node_runs_again_after_a_kill(tmp_path):
    found = figures("--short", "--folder", str(tmp_path))
    assert found["dag_nodes_rerun_after_kill"] == 0 and found["kills"] == 1
    assert found["ran"] == {"1": ["proxy", "student"], "2": ["student"], "3": []}
    assert found["record_agrees"] and found["folders_unchanged"] and found["products_unchanged"] == 1
    assert len(found["went_on_at"]) == 1 and found["went_on_at"][0] >= 4
