"""The public functions: signatures, docstrings and results as editors and ``help()`` show them, and wrong arguments."""

from __future__ import annotations

import ast
import collections
import dataclasses
import importlib
import inspect
import pydoc
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

import radioplat
from radioplat.exporting.engines.build import EngineReport
from radioplat.exporting.onnx.export import OnnxReport
from radioplat.tasks.evaluate.evaluation import Evaluation

TASKS = "distill train evaluate prune quantize compress export build_engine tune plan".split()
TASKS += "low_rank sensitivity inference train_upsampler".split()
FUNCTIONS = [*TASKS, "fork", "pipeline", "replay", "lineage", "load_spec", "load_student", "embed", "predict"]


def hints_of(name: str) -> dict[str, typing.Any]:
    """The annotations of a function; two classes are imported by those alone who have the extra ``onnx``."""
    reports = {"OnnxReport": OnnxReport, "EngineReport": EngineReport}
    return typing.get_type_hints(getattr(radioplat, name), localns=reports)


def result_kinds(name: str) -> list[type]:
    """The classes that a task may return."""
    kind = hints_of(name)["return"]
    return list(typing.get_args(kind)) if isinstance(kind, types.UnionType) else [kind]


RESULTS = sorted({kind for name in TASKS for kind in result_kinds(name)}, key=lambda kind: kind.__name__)


def test_the_names_of_editors_are_those_of_python():
    tree = ast.parse(Path(radioplat.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    stub = {alias.asname: (node.module, alias.name) for node in imports for alias in node.names}
    assert {name: (module, name) for name, module in radioplat._MODULES.items()} == stub
    assert set(stub) <= set(dir(radioplat)) and set(radioplat.__all__) == set(stub)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes_returns_and_raises(name):
    function = getattr(radioplat, name)
    assert inspect.isfunction(function) and function.__name__ == name
    parameters = inspect.signature(function).parameters
    hints = hints_of(name)  # annotations can be resolved
    assert set(parameters) < set(hints) and "return" in hints
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert all(f"{parameter}:" in text for parameter in parameters)
    sections = {"Raises:", "Example:"} | ({"Returns:"} if name in TASKS else set())
    assert [section for section in sections if section not in text] == []


@pytest.mark.parametrize("name", TASKS)
def test_every_task_takes_a_spec_and_overrides(name):
    spec, overrides, *others = inspect.signature(getattr(radioplat, name)).parameters.values()
    assert (spec.name, overrides.name) == ("spec", "overrides") and overrides.default == ()
    hints = hints_of(name)
    assert hints["spec"] == str | Path | collections.abc.Mapping[str, typing.Any] | radioplat.Spec
    assert hints["overrides"] == collections.abc.Sequence[str]


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_a_result_has_documented_fields(kind):
    if kind is Evaluation:
        return
    assert dataclasses.is_dataclass(kind)
    documented = "\n".join(inspect.getdoc(base) or "" for base in kind.__mro__ if dataclasses.is_dataclass(base))
    assert [field.name for field in dataclasses.fields(kind) if field.name not in documented] == []


@pytest.mark.parametrize("name", ["distill", "prune", "low_rank", "quantize", "compress"])
def test_a_result_with_a_student_names_its_folder(name):
    for kind in result_kinds(name):
        hint = getattr(kind, "student", None)
        assert isinstance(hint, property) or "student" in {field.name for field in dataclasses.fields(kind)}


def test_importing_tasks_first_hides_no_function():
    for name in TASKS:
        importlib.import_module(radioplat._MODULES[name])
    assert all(inspect.isfunction(getattr(radioplat, name)) for name in TASKS)


def test_import_loads_nothing_heavy():
    heavy = "{'torch', 'numpy', 'ray', 'deepspeed', 'pyarrow', 'omegaconf', 'rich'}"
    code = f"import sys, radioplat; dir(radioplat); sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistyped_function_has_a_suggestion():
    with pytest.raises(AttributeError, match="Did you mean: 'distill'"):
        radioplat.distil("spec.yaml")


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("plan", "tune")])
@pytest.mark.parametrize(
    ("spec", "overrides", "where", "words"),
    [
        ({}, "train.num_epochs=2", "overrides", "this is a str, not a list"),
        ({}, {"train.num_epochs": 2}, "overrides", "this is a dict, not a list"),
        ({}, [("train.num_epochs", 2)], "overrides[0]", "this is a tuple, not a text"),
        (["spec.yaml"], (), "spec", "this is a list, not a spec"),
        ("nowhere.yaml", (), "nowhere.yaml", "cannot read the spec"),
        ({"train": {"num_epoch": 2}}, (), "train.num_epoch", "num_epochs"),
    ],
)
def test_a_wrong_argument_is_an_error_that_says_so(name, spec, overrides, where, words):
    with pytest.raises(radioplat.RadioplatError) as caught:
        getattr(radioplat, name)(spec, overrides)
    (problem,) = caught.value.problems
    assert problem.where == where and words in str(problem)


def test_plan_returns_all_problems_and_prints_nothing(capfd, tmp_path):
    unread = radioplat.plan({"train": {"num_epoch": 2, "lr": 1}})
    assert [problem.where for problem in unread.problems] == ["train.num_epoch", "train.lr"] and not unread.can_start
    planned = radioplat.plan({"results_dir": str(tmp_path / "results")})
    assert "distill.teacher" in {problem.where for problem in planned.problems}
    assert capfd.readouterr() == ("", "")
    with pytest.raises(radioplat.RadioplatError, match="no task is called 'index'"):
        radioplat.plan({}, task="index")


def test_a_spec_may_be_any_mapping():
    sections = types.MappingProxyType({"train": types.MappingProxyType({"num_epochs": 3})})
    spec = radioplat.load_spec(sections, ("dataset.batch_size=4",))
    assert (spec.train.num_epochs, spec.dataset.batch_size) == (3, 4)
