"""What the plan of several students says of a worker's memory, where there are GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.launch.preflight.memory import MEMORY
from radioplat.launch.preflight.preflight import Preflight, WorkerMemory
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.findings import Plan
from radioplat.tasks.plan.students import _add_memory

GB = 10**9


@pytest.mark.parametrize(("has", "fits"), [(24, True), (20, False), (0, True)])
def test_memory_of_all_is_added_up(has, fits):
    """Two students of 6 and 4 GB, the teachers of one worker, and the activations of the larger: 6 + 4 + 5 + 1 + 7."""
    parts = [(6, 5, 1, 7), (4, 5, 1, 2)]
    prepared = [
        Preflight(load_spec({}), "distill", Path("x"), worker_memory=WorkerMemory(*(n * GB for n in part), has * GB))
        for part in parts
    ]
    plan = Plan(problems=[])
    _add_memory(plan, prepared)
    assert plan.facts[MEMORY].startswith("10 GB for what is trained of 2 students, 5 GB for teachers")
    assert plan.warnings == [] if fits else plan.warnings[0].startswith("distill.students: a worker needs more than 23")
