"""Which task `plan` plans where none is named, and the training of a quantized student."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radioplat.cli import main as cli
from radioplat.errors import SpecError
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.next_task import next_task
from radioplat.tasks.plan.plan import plan

SPECS = Path(__file__).parents[3] / "specs"
TEACHER = "distill.teacher=[{name: t}]"
QAT = "quantize.mode=qat"


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("detection", "train"),
        ("detection_chain", "distill"),
        ("classification", "distill"),
        ("quickstart", "distill"),
        ("radio_two_teachers", "distill"),
        ("segmentation", "distill"),
    ],
)
def test_the_examples_are_planned_as_what_they_are_for(name, task, tmp_path):
    spec = load_spec(SPECS / f"{name}.yaml", [f"results_dir={tmp_path}"])
    assert next_task(spec)[0] == task
    assert not {"distill.teacher", "distill.bindings"} & {problem.where for problem in plan(spec).problems}


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        (["dataset.num_classes=3"], "train"),
        (["model.task=detection"], "train"),
        ([], "distill"),
        (["dataset.num_classes=3", TEACHER], "distill"),
        ([QAT, "dataset.num_classes=3"], "train"),  # there is nothing to quantize yet
    ],
)
def test_what_a_spec_is_for(fields, task, tmp_path):
    assert next_task(load_spec(None, [f"results_dir={tmp_path}", *fields]))[0] == task


@pytest.fixture
def student(tmp_path) -> Path:
    torch.manual_seed(0)
    made = Student(StudentArchitecture("test_vit", img_size=64))
    (tmp_path / "student").mkdir()
    save_student(made, made.state_dict(), tmp_path / "student")
    return tmp_path / "student"


def test_qat_is_planned_from_what_it_quantizes(student, tmp_path):
    fields = [
        f"results_dir={tmp_path}", QAT, f"quantize.checkpoint={student}", "quantize.qat.max_steps=7", "train.damp=0.1",
        "train.precision=fp16", "dataset.num_classes=3", "model.backbone.type=resnet18", "dataset.img_size=64",
    ]  # fmt: skip
    spec = load_spec(None, fields)
    task, why = next_task(spec)
    assert task == "quantize" and str(student) in why
    found = plan(spec)
    assert found.facts["task"] == why and [note for note in found.warnings if "train.damp" in note]
    assert [m.parameters for m in found.models] != [m.parameters for m in plan(spec, task="train").models]


def test_qat_that_cannot_be_is_said(student, tmp_path):
    spec = load_spec(None, [f"results_dir={tmp_path / 'none'}", QAT, "dataset.num_classes=3"])
    assert "quantize.checkpoint" in [problem.where for problem in plan(spec, task="quantize").problems]


def test_the_command_line_names_a_task(tmp_path, capsys):
    line = ["plan", "-e", str(SPECS / "detection.yaml"), f"results_dir={tmp_path}"]
    assert cli.main(line) == 1 and "at least one teacher" not in "".join(capsys.readouterr())
    for word in ("auto", "train"):
        assert cli.main(["plan", word, *line[1:]]) == 1
        assert "at least one teacher" not in "".join(capsys.readouterr())
    assert cli.main(["plan", "distill", *line[1:]]) == 1 and "at least one teacher" in "".join(capsys.readouterr())
    assert cli.main(["plan", f"results_dir={tmp_path}", "-e", line[2]]) == 1
    with pytest.raises(SpecError, match="distill, train"):
        plan(load_spec(None), task="index")
