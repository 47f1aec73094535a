"""The registries of training tasks hold the same names, and nothing else compares one with a literal."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import radioplat
from radioplat.design.tasks.registry import TASKS, model_task_of, task_for
from radioplat.models.model_kind import ModelKind
from radioplat.spec.checks.tasks.training_task import COMMANDS, TRAINING_TASKS, command_of, training_task
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.model import ModelTask

NAMES = {*COMMANDS, *(task.name for task in TRAINING_TASKS)}
TEACHER = "distill.teacher=[{name: t}]"


def compared_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each training task or command that ``source`` compares, tests membership of, or matches."""
    for node in ast.walk(ast.parse(source)):
        parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        parts += [node.value] if isinstance(node, ast.MatchValue) else []
        for part in parts:
            inner = part.elts if isinstance(part, (ast.Tuple, ast.List, ast.Set)) else [part]
            yield from ((n.lineno, n.value) for n in inner if isinstance(n, ast.Constant) and n.value in NAMES)


def test_no_name_of_a_task_is_compared_outside_the_registry():
    package = Path(radioplat.__file__).parent
    compared = [
        f"{path.relative_to(package)}:{line} {name}"
        for path in sorted(package.rglob("*.py"))
        for line, name in compared_names(path.read_text())
    ]
    assert compared == []


@pytest.mark.parametrize(
    "source",
    ['run.task == "distill"', 'if task in ("train", x): pass', '"detect" != kind', 'match t:\n case "classify": pass'],
)
def test_comparisons_are_seen(source):
    assert len(list(compared_names(source))) == 1


def test_the_registries_have_the_same_names():
    assert set(TASKS) == {task.name for task in TRAINING_TASKS}


@pytest.mark.parametrize(
    ("overrides", "command", "name", "kind"),
    [
        ([TEACHER], "distill", "distill", ModelKind.student),
        (["dataset.num_classes=3"], "train", "classify", ModelKind.student),
        ([TEACHER, "model.task=detection"], "distill", "detect", ModelKind.detector),
        (["model.task=detection"], "train", "detect", ModelKind.detector),
    ],
)
def test_every_spec_has_one_task(overrides, command, name, kind):
    spec = load_spec(None, overrides)
    assert command_of(spec) == command and training_task(spec).name == name
    assert task_for(spec) is TASKS[name] and TASKS[name].model_kind is kind


def test_kinds_of_models_lead_to_model_task():
    assert {kind: model_task_of(kind) for kind in ModelKind} == {
        ModelKind.student: ModelTask.features,
        ModelKind.detector: ModelTask.detection,
    }
