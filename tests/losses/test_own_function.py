"""A user's own function as a loss: read from a spec, tried before a run, computed as the losses of the spec are."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from radioplat.errors import SpecError
from radioplat.losses.own_function import own_function_problems
from radioplat.losses.registry import criterion
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import DistillConfig, LossType

MINE = """
import torch

def third(student, teacher):
    return (student - teacher).abs().pow(3).mean(-1)

def one_number(student, teacher):
    return (student - teacher).square().mean()

def of_summaries(student, teacher):
    return (student - teacher).square().mean(1)

def root(student, teacher):
    return (student - teacher).square().sum(-1).sqrt()

def detached(student, teacher):
    return (student - teacher).square().mean(-1).detach()

def fails(student, teacher):
    return student @ torch.zeros(5, 5)

number = 3
class Loss: pass
"""
WIDTHS = {"summary": 8, "spatial": 6, "logits": 0}


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "their_losses.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def spec_of(loss="their_losses:third", mode="spatial", **distill):
    teacher = {"pretrained_teacher_model_path": "/t.pth", "mode": mode, "loss_type": loss}
    return load_spec({"distill": {"teacher": [teacher], **distill}})


def problems(loss, mode="spatial"):
    (teacher,) = resolve_teachers(spec_of(loss, mode))
    return list(own_function_problems(teacher, WIDTHS))


def test_the_spec_keeps_an_import_path_through_yaml_copies_and_pickles(tmp_path):
    spec = spec_of(
        bindings=[{"teacher_module_name": "a", "student_module_name": "b", "criterion": "their_losses:root"}]
    )
    loss = spec.distill.teacher[0].loss_type
    assert isinstance(loss, LossType) and loss.is_own and loss.value == "their_losses:third"
    assert not any(known.is_own for known in LossType) and loss not in list(LossType)
    (tmp_path / "spec.yaml").write_text(to_yaml(spec))
    again = (load_spec(tmp_path / "spec.yaml"), load_spec(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)))
    assert all(other == spec for other in again)
    assert not [p for p in check(spec, "distill") if "loss" in p.where]


@pytest.mark.parametrize("wrong", ["third", "their_losses.third", ":third", "their_losses:", "a b:c", "a:b:c", "a-b:c"])
def test_what_is_no_import_path_is_no_loss(wrong):
    with pytest.raises(SpecError, match="KL, CE, L1"):
        spec_of(wrong)


def test_it_is_computed_over_what_counts():
    (teacher,) = resolve_teachers(spec_of())
    compare = criterion(teacher.terms[0], 6, DistillConfig())
    student, target = torch.full((3, 2, 2, 6), 2.0, requires_grad=True), torch.zeros(3, 2, 2, 6)
    target[2] = torch.nan
    values, weight = compare(student, target, torch.tensor([1.0, 1, 0]))
    assert values.tolist() == [8, 8, 0] and weight.tolist() == [1, 1, 0]
    values.sum().backward()
    assert student.grad[:2].all() and not student.grad[2].any()


def test_a_function_that_can_be_used_has_no_problem():
    assert problems("their_losses:third") == [] == problems("their_losses:third", "combo")
    assert problems("their_losses:of_summaries", "summary") == []


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("no_such_module:f", "cannot import no_such_module:f"),
        ("their_losses:nothing", "cannot import their_losses:nothing"),
        ("their_losses:number", "is no function"),
        ("their_losses:Loss", "is no function"),
        ("their_losses:one_number", r"made \[\] of features \[2, 3, 4, 6\]"),
        ("their_losses:of_summaries", r"made \[2, 4, 6\] of features"),
        ("their_losses:detached", "nothing that can be differentiated"),
        ("their_losses:root", "no finite value and gradient where both sides are zeros"),
        ("their_losses:fails", "failed on features .*RuntimeError"),
    ],
)
def test_a_function_that_cannot_be_used_is_named_with_its_field(loss, message):
    (problem,) = problems(loss)
    assert problem.where == "distill.teacher[0].loss_type"
    with pytest.raises(SpecError, match=message):
        raise SpecError(problem)


def test_an_extra_loss_has_a_name_that_modules_can_have():
    extra = {"type": "their_losses:third", "kind": "spatial"}
    teacher = {"pretrained_teacher_model_path": "/t.pth", "mode": "summary", "loss_type": "CS", "extra_losses": [extra]}
    (resolved,) = resolve_teachers(load_spec({"distill": {"teacher": [teacher]}}))
    assert resolved.terms[1].name == "spatial_third"
    torch.nn.ModuleDict({resolved.terms[1].name: criterion(resolved.terms[1], 6, DistillConfig())})
