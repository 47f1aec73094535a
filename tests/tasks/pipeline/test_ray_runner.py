"""What nodes need on a Ray cluster; no cluster is started here."""

from __future__ import annotations

import pytest

from radioplat.cluster.resources import Resources
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.pipeline.ray_runner import Placed, placed_on


def family(placement: str, num_gpus: int) -> dict:
    """The spec of three students and a teacher with a replica of its own."""
    return {
        "distill": {
            "placement": placement,
            "students": [{"name": name} for name in ("first", "second", "third")],
            "teacher": [{"name": "old", "pretrained_teacher_model_path": "there"}],
        },
        "teachers": {"old": {"num_cpus": 0.5, "num_gpus": 0.25}},
        "train": {"num_gpus": num_gpus},
        "cluster": {"mode": "ray", "cpus_per_worker": 2.0, "cpus_per_decode": 1.0},
    }


@pytest.mark.parametrize(
    ("placement", "num_gpus", "expected"),
    [
        ("together", 1, Placed(True, Resources(2.0, 1.0), Resources(2.0, 1.0))),
        ("together", 2, Placed(False, Resources(0.01, 0.0), Resources(2 * 2.0 + 1.5, 2.25))),
        ("spread", 1, Placed(False, Resources(0.01, 0.0), Resources(3 * 2.0 + 1.5, 3.25))),
        ("spread", 2, Placed(False, Resources(0.01, 0.0), Resources(3 * 2 * 2.0 + 1.5, 6.25))),
    ],
)
def test_students_with_workers_of_their_own_need_a_group_each(placement, num_gpus, expected):
    assert placed_on(load_spec(family(placement, num_gpus)), gpus=True) == expected
