"""A worker that dies between the start of its process and the call of the training function holds nothing up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.proof]

PROGRAM = """
import json, os, signal, sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig

from radioplat.cluster.ray_cluster import start_here
from radioplat.launch.ray.elastic import ElasticTrainer

folder = Path(sys.argv[1])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(Backend):
    def on_start(self, worker_group, backend_config):
        deaths = folder / "deaths"
        count = len(deaths.read_text()) if deaths.exists() else 0
        deaths.write_text("x" * (count + 1))
        if count < 2:
            worker_group.execute_single(0, die)


class Config(BackendConfig):
    @property
    def backend_cls(self):
        return Dying


def train(config):
    (folder / "trained").write_text("yes")


start_here(3)
trainer = ElasticTrainer(
    train,
    train_loop_config={},
    scaling_config=ScalingConfig(num_workers=(1, 3), resources_per_worker={"CPU": 1}),
    run_config=RunConfig(
        name="t", storage_path=str(folder), failure_config=FailureConfig(max_failures=5, max_preemption_failures=-1)
    ),
    folder=folder,
    others={},
)
trainer.backend_config = Config()
trainer.fit()
print(json.dumps({"trained": (folder / "trained").exists(), "starts": len((folder / "deaths").read_text())}))
"""


def test_resources_of_a_start_that_failed_are_free_for_the_next(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = {
        k: v for k, v in (os.environ | {"RAY_TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}).items() if k != "RAY_ADDRESS"
    }
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        command, env=environment | {"PYTHONPATH": root}, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {"trained": True, "starts": 3}
