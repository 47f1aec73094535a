"""Whether a step has any weight is known on all ranks alike, before its weights would move."""

from __future__ import annotations

import json

import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks

from radioplat.data.batch import Batch
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import ClassifyObjective
from radioplat.spec.schema.train import TrainConfig
from radioplat.training.guards.non_finite import NonFiniteGuard
from radioplat.training.hooks.step_hook import StepHooks
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.hooks.step_sums import StepSums

# By step and rank: the weight of each sample of its two micro-batches.
STEPS = [
    (((0, 0), (0, 0)), ((0, 0), (0, 0))),
    (((0, 0), (0, 0)), ((0, 0), (0, 1))),
    (((1, 0), (0, 0)), ((0, 0), (0, 0))),
    (((1, 1), (1, 1)), ((1, 1), (1, 1))),
]


def work() -> None:
    """Print what this rank decides before the update of each step."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    guard = NonFiniteGuard(TrainConfig(), ClassifyObjective(Student(StudentArchitecture("test_resnet")), "224"))
    hooks, sums = StepHooks([guard]), StepSums(torch.device("cpu"))
    found, ids = [], np.arange(2)
    for step, weights in enumerate(STEPS):
        record = StepRecord(step, 0.1)
        sums.begin()
        hooks.begin_step(step)
        for weight in weights[rank]:
            batch = Batch(0, {}, ids, ids, np.array(weight, np.float32), ids)
            hooks.begin_micro_batch(step, batch)
            sums.add({"loss": torch.tensor(0.0)}, 1.0, 0)
        record.share(sums, hooks.sums())
        record.reduce(sums, 4)
        found.append(not hooks.before_update(record).skip)
    print(json.dumps(found), flush=True)


def test_ranks_agree_whether_a_step_has_weight():
    said = run_ranks(work, seconds=90)
    assert [json.loads(line.splitlines()[-1]) for line in said] == [[False, True, True, True]] * 2
