"""Whether a step has any weight is known on all ranks alike, before its weights would move.

Run as a script this file is one of two ranks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import torch
import torch.distributed as dist

from radioplat.data.batch import Batch
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import ClassifyObjective
from radioplat.spec.schema.train import TrainConfig
from radioplat.training.guards.non_finite import NonFiniteGuard

# By step and rank: the weight of each sample of its two micro-batches.
STEPS = [
    (((0, 0), (0, 0)), ((0, 0), (0, 0))),
    (((0, 0), (0, 0)), ((0, 0), (0, 1))),
    (((1, 0), (0, 0)), ((0, 0), (0, 0))),
    (((1, 1), (1, 1)), ((1, 1), (1, 1))),
]


def work(rank: int) -> None:
    """Print what this rank knows at the end of each step."""
    dist.init_process_group("gloo", rank=rank, world_size=2)
    guard = NonFiniteGuard(TrainConfig(), ClassifyObjective(Student(StudentArchitecture("test_resnet")), "224"))
    found, ids = [], np.arange(2)
    for step, weights in enumerate(STEPS):
        guard.begin_step()
        for weight in weights[rank]:
            guard.check(step, Batch(0, {}, ids, ids, np.array(weight, np.float32), ids), {"loss": torch.tensor(0.0)})
        found.append(guard.has_weight)
    print(json.dumps(found), flush=True)


def test_ranks_agree_whether_a_step_has_weight():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank)], env=os.environ | group | path, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=90)[0] for process in ranks]
    assert [json.loads(line.splitlines()[-1]) for line in said] == [[False, True, True, True]] * 2


if __name__ == "__main__":
    work(int(sys.argv[1]))
