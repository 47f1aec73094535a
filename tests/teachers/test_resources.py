"""Custom resources of a teacher's replicas."""

from __future__ import annotations

import pytest

from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec


@pytest.mark.parametrize(
    ("service", "found"),
    [
        ({"resources": {"radioplat_teacher": 1}}, ""),
        ({"resources": {"GPU": 1}}, "num_gpus"),
        ({"resources": {"radioplat_teacher": 1}, "placement": "inline"}, "inside the workers"),
    ],
)
def test_what_is_refused(service, found):
    teacher = {"name": "t", "pretrained_teacher_model_path": "t.pth", "model": {"backbone": {"type": "resnet18"}}}
    spec = load_spec({"results_dir": "/r", "distill": {"teacher": [teacher]}, "teachers": {"t": service}})
    said = [str(problem) for problem in check(spec, "distill") if "teachers.t.resources" in str(problem)]
    assert (not said) if not found else any(found in line for line in said), said
