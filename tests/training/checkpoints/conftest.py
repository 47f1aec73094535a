"""Checkpoints of a small student."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from checkpoint_files import STATE

from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.training.checkpoints.checkpoint import (
    commit,
    snapshot,
)


@pytest.fixture(scope="module")
def student() -> Student:
    torch.manual_seed(0)
    return Student(StudentArchitecture("test_efficientnet", heads=(HeadArchitecture("a", 4),)))


@pytest.fixture
def write(student, tmp_path):
    """write(name, step) -> folder of a checkpoint."""

    def make(name: str = "model_epoch_001", step: int = 3):
        moments = {f"{n}.exp_avg": torch.full_like(p, 0.5) for n, p in student.named_parameters()}
        state = dataclasses.replace(STATE, global_step=step)
        return commit(tmp_path, snapshot(name, student, student.state_dict(), moments, state))

    return make
