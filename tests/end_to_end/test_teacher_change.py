"""A run goes on with another set of teachers: what both have stays bit for bit, new heads begin anew."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from radioplat.errors import SpecError
from radioplat.models.student.student import Student
from radioplat.models.vision_model import open_architecture
from radioplat.tracking.results import TaskFolder
from radioplat.training.checkpoints.checkpoint import read_checkpoint, verified_state
from radioplat.training.checkpoints.teacher_change import teacher_change

ALLOWED = "train.allow_teacher_change=true"
EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")
HALF = "model_epoch_001"  # at step 4 of 8


@pytest.fixture
def half(quiet_run, tmp_path) -> Path:
    """A copy of the quiet run as it was after half of its steps: its results folder."""
    copy = tmp_path / "half" / "distill"
    shutil.copytree(quiet_run.folder, copy, symlinks=True)
    for path in TaskFolder(copy.parent, "distill").checkpoints():
        if verified_state(path).global_step > 4:
            shutil.rmtree(path)
    TaskFolder(copy.parent, "distill").point_latest(HALF)
    return copy.parent


@pytest.fixture
def one_teacher(make_spec, half):
    """The spec of the run in ``half`` with the first, or the second, of its teachers alone."""

    def spec(kept: int) -> dict:
        whole = make_spec(half)
        whole["distill"]["teacher"] = [whole["distill"]["teacher"][kept]]
        whole.pop("teachers", None)  # how each is served
        return whole

    return spec


def test_other_teachers_are_refused_by_name(one_teacher, distil):
    with pytest.raises(SpecError, match="train.allow_teacher_change=true") as caught:
        distil(one_teacher(0), *EVERY_SECOND)
    (problem,) = caught.value.problems
    assert problem.where == "distill.teacher" and "the spec has no teacher" in problem.message


@pytest.mark.parametrize("kept", [0, 1])
def test_what_stays_is_what_the_checkpoint_has(one_teacher, half, kept):
    """Weights, moments and class tokens, by the files' own names."""
    checkpoint = half / "distill" / HALF
    old = open_architecture(checkpoint)
    names = [head.name for head in old.heads]
    new = one_of(old, kept)
    torch.manual_seed(1)
    student = Student(new)
    change = teacher_change(checkpoint, student)
    assert change.removed == [names[1 - kept]] and change.added == []
    tensors, moments = read_checkpoint(checkpoint)
    weights = change.weights(tensors)
    assert set(weights) == set(student.state_dict())
    tokens = "backbone.patch_generator.cls_token.token"
    assert tokens in weights
    for name, value in weights.items():
        if name != tokens:
            assert torch.equal(value, tensors[name]), name
    slot = old.heads[kept].token_slot
    assert torch.equal(weights[tokens][0], tensors[tokens][slot])
    registers = tensors[tokens][old.num_class_tokens :]
    assert torch.equal(weights[tokens][1 : 1 + len(registers)], registers)
    kept_moments = change.moments(moments, ("exp_avg", "exp_avg_sq"))
    assert not any(f"heads.{names[1 - kept]}." in name for name in kept_moments)
    for name, value in kept_moments.items():
        if tokens not in name:
            assert torch.equal(value, moments[name]), name
    assert torch.equal(kept_moments[f"{tokens}.exp_avg"][0], moments[f"{tokens}.exp_avg"][slot])


def one_of(architecture, kept: int):
    """The architecture with one head, which reads the only class token."""
    head = dataclasses.replace(architecture.heads[kept], token_slot=0)
    return dataclasses.replace(architecture, heads=(head,), num_class_tokens=1)


def test_a_teacher_goes_and_comes_back_in_one_run(one_teacher, make_spec, distil, half):
    gone = distil(one_teacher(0), *EVERY_SECOND, ALLOWED, "train.max_steps=6")
    assert gone.result.resumed_from == 4 and sorted(gone.losses) == [5, 6]
    assert len(open_architecture(gone.result.checkpoint).heads) == 1
    back = distil(make_spec(half), *EVERY_SECOND, ALLOWED)
    assert back.result.resumed_from == 6 and sorted(back.losses) == [7, 8]
    assert len(open_architecture(back.result.checkpoint).heads) == 2
    assert all(loss == loss and loss > 0 for loss in back.losses.values())


def test_a_new_teacher_whose_targets_would_have_to_be_measured_is_refused(one_teacher, make_spec, distil, half):
    gone = distil(one_teacher(0), *EVERY_SECOND, ALLOWED, "train.max_steps=6")
    whole = make_spec(half)
    name = whole["distill"]["teacher"][1]["name"]
    whole["distill"]["teacher"][1]["spatial_norm_type"] = "phi"
    with pytest.raises(SpecError, match=f"the targets of {name} are measured before the first step") as caught:
        distil(whole, *EVERY_SECOND, ALLOWED)
    assert caught.value.problems[0].where == "train.allow_teacher_change" and gone.result.global_step == 6
