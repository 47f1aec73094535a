"""What is wrong with ``distill.target_norm``, by its field."""

from __future__ import annotations

import pytest

from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec

SPEC = {
    "distill": {
        "target_norm": {"type": "phi_s"},
        "teacher": [
            {
                "name": "t",
                "model": {"backbone": {"type": "test_vit"}},
                "mode": "summary",
                "loss_type": "CS",
                "pretrained_teacher_model_path": "/nowhere",
            }
        ],
    }
}


def found(*overrides: str) -> list[str]:
    return [problem.where for problem in check(load_spec(SPEC, overrides))]


@pytest.mark.parametrize("kind", ["none", "standardize", "standardize_channels", "phi_s", "zca", "pca"])
def test_every_type_is_accepted(kind):
    assert found(f"distill.target_norm.type={kind}") == []


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["distill.teacher[0].spatial_norm_type=phi"], "distill.teacher[0].spatial_norm_type"),
        (["distill.target_norm.fit=running", "distill.target_norm.path=/x"], "distill.target_norm.path"),
        (["distill.target_norm.type=none", "distill.target_norm.path=/x"], "distill.target_norm.path"),
        (["distill.target_norm.type=none", "distill.target_norm.fit=running"], "distill.target_norm.fit"),
    ],
)
def test_rule(overrides, where):
    assert found(*overrides) == [where]


def test_a_running_fit_and_a_shared_file_are_fine_apart():
    assert found("distill.target_norm.fit=running") == found("distill.target_norm.path=/x") == []
