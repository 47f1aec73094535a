"""A run starts a cluster of its own where none runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import radioplat

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]

START = """
import ray
from radioplat.cluster.ray_cluster import joined
from radioplat.spec.loading.load import load_spec

with joined(load_spec({}), []):
    print("started", ray.is_initialized())
"""


def test_a_cluster_that_ended_and_left_its_address_does_not_hinder_a_new_one():
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # not tmp_path: the paths of sockets would be too long
        left = Path(folder) / "ray" / "ray_current_cluster"  # `ray start` writes it, and a machine that fails leaves it
        left.parent.mkdir()
        left.write_text("127.0.0.1:9")
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"RAY_TMPDIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=False
        )
    assert "started True" in done.stdout, done.stderr


def test_nothing_else_starts_a_cluster():
    package = Path(radioplat.__file__).parent
    starts = [p.relative_to(package).as_posix() for p in package.rglob("*.py") if "ray.init(" in p.read_text()]
    assert starts == ["cluster/ray_cluster.py"]
