"""Packages of extras that are not installed: a message with the command and the spec field."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from radioplat.cli.main import guarded
from radioplat.common.imports import CORE, EXTRAS, missing_extra, missing_module, missing_tensorrt, require_extra
from radioplat.errors import SpecError, problems_of
from radioplat.spec.checks.tasks.export import export_problems
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.compress.compress import checked_groups
from radioplat.tasks.export.engine import build_engine, open_engine_inputs
from radioplat.tasks.tune.space import load_space


@pytest.fixture
def without(monkeypatch):
    """without(module, ...): such modules are not installed."""

    def remove(*modules: str) -> None:
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)

    return remove


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_installed_is_no_problem(extra):
    assert list(missing_extra(extra, "this", "a.field")) == []
    require_extra(extra, "this", "a.field")


def test_a_missing_package_is_named_with_its_field_and_its_command(without):
    without("onnxscript", "onnxruntime")
    with pytest.raises(SpecError) as error:
        require_extra("onnx", "format onnx", "export.format")
    (problem,) = error.value.problems
    assert problem.where == "export.format" and "onnxscript" in problem.message
    assert problem.hint == "Run pip install 'radioplat[onnx]'."


# A spec's fields, the module that is missing, and the field and the extra that the problem names.
SPECS = {
    "wandb": (check, {"wandb": {"enable": True}}, "wandb", "wandb.enable", "wandb"),
    "trackers": (check, {"train": {"trackers": ["wandb"]}}, "wandb", "train.trackers", "wandb"),
    "export": (export_problems, {}, "onnx", "export.format", "onnx"),
    "chained export": (check, {"distill": {"then": ["export"]}}, "onnxruntime", "export.format", "onnx"),
    "chained engine": (check, {"distill": {"then": ["gen_trt_engine"]}}, "onnx", "gen_trt_engine.backend", "onnx"),
    "openvino": (
        check,
        {"distill": {"then": ["gen_trt_engine"]}, "gen_trt_engine": {"backend": "openvino"}},
        "openvino",
        "gen_trt_engine.backend",
        "openvino",
    ),
    "evaluation of a file": (
        check,
        {"evaluate": {"models": [{"name": "a", "path": "student.onnx"}]}},
        "onnx",
        "evaluate.models[0].path",
        "onnx",
    ),
    "engine of a chain": (
        lambda spec: problems_of(checked_groups, spec),
        {"compress": {"stages": ["export", "engine"], "checkpoint": "s"}, "gen_trt_engine": {"backend": "openvino"}},
        "openvino",
        "gen_trt_engine.backend",
        "openvino",
    ),
    "openvino's latency": (
        prune_problems,
        {"prune": {"budget": {"latency": 0.5}}, "gen_trt_engine": {"backend": "openvino"}},
        "openvino",
        "gen_trt_engine.backend",
        "openvino",
    ),
    "openvino's plan": (
        lambda spec: problems_of(open_engine_inputs, spec),
        {"gen_trt_engine": {"backend": "openvino"}},
        "openvino",
        "gen_trt_engine.backend",
        "openvino",
    ),
    "detector": (check, {"model": {"task": "detection"}}, "transformers", "model.task", "hf"),
    "mAP": (check, {"model": {"task": "detection"}}, "pycocotools", "model.task", "detect"),
    "latency": (prune_problems, {"prune": {"budget": {"latency": 0.5}}}, "onnx", "prune.budget.latency", "onnx"),
}


TENSORRTS = {"tensorrt": "pip install tensorrt", "tensorrt_rtx": "pip install 'radioplat[engine]'"}
CHAIN = {"stages": ["export", "engine"], "checkpoint": "s"}
# What asks for an engine: a chained task, a chain, the task and its plan, a budget of its latency.
ASKS = {
    "check": (check, {"distill": {"then": ["gen_trt_engine"]}}),
    "compress": (lambda spec: problems_of(checked_groups, spec), {"compress": CHAIN}),
    "plan": (lambda spec: problems_of(open_engine_inputs, spec), {}),
    "gen_trt_engine": (lambda spec: problems_of(build_engine, spec), {}),
    "prune": (prune_problems, {"prune": {"budget": {"latency": 0.5}}}),
}


@pytest.mark.parametrize("name", SPECS)
def test_checks_of_a_spec_report_it(name, without):
    problems_of, tree, module, where, extra = SPECS[name]

    def reported() -> bool:
        hint = f"pip install 'radioplat[{extra}]'"
        return any(p.where == where and module in p.message and hint in p.hint for p in problems_of(load_spec(tree)))

    assert not reported()
    without(module)
    assert reported()


@pytest.mark.parametrize(("backend", "command"), TENSORRTS.items())
@pytest.mark.parametrize("asks", ASKS)
def test_a_missing_tensorrt_is_reported_before_anything_is_built(backend, command, asks, without, tmp_path):
    without("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
    problems_of, tree = ASKS[asks]
    spec = load_spec(tree | {"results_dir": str(tmp_path), "gen_trt_engine": {"backend": backend}})
    (problem,) = [problem for problem in problems_of(spec) if problem.where == "gen_trt_engine.backend"]
    assert f"backend {backend} needs the package {backend}, which is not installed" in problem.message
    assert command in problem.hint


def test_either_package_of_tensorrt_for_rtx_is_enough(without, monkeypatch):
    without("tensorrt_rtx", "tensorrt_rtx_bindings")
    assert list(missing_tensorrt("tensorrt_rtx", "a.field"))
    module = ModuleType("tensorrt_rtx_bindings")
    module.__spec__ = ModuleSpec("tensorrt_rtx_bindings", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", module)
    assert not list(missing_tensorrt("tensorrt_rtx", "a.field"))


def test_a_format_without_onnx_needs_no_package(without):
    without("onnx")
    spec = load_spec({"export": {"format": "timm"}})
    assert not any("onnx" in problem.hint for problem in export_problems(spec))


def test_a_sweep_names_its_algorithm(without):
    space = {
        "task": "distill",
        "objectives": [{"metric": "knn", "mode": "max"}],
        "search": {"algorithm": "optuna"},
        "budget": {"trials": 4},
        "parameters": {"train.optim.lr": {"loguniform": [1e-4, 1e-2]}},
    }
    load_space(space)
    without("optuna")
    with pytest.raises(SpecError, match=r"search.algorithm: .*optuna.*pip install 'radioplat\[tune\]'"):
        load_space(space)


def test_a_sweep_by_latency_names_the_package_of_engines(without):
    space = {
        "task": "prune",
        "objectives": [{"metric": "latency", "mode": "min"}],
        "budget": {"trials": 4},
        "parameters": {"prune.amount": {"uniform": [0.1, 0.5]}},
    }
    load_space(space)
    without("onnxruntime")
    with pytest.raises(SpecError, match=r"objectives\[0\].metric: .*onnxruntime.*pip install 'radioplat\[onnx\]'"):
        load_space(space)


def test_an_import_that_fails_is_a_message_of_the_command(without, capsys):
    without("onnx")

    def use() -> None:
        import onnx  # noqa: F401

    assert guarded(use) == 1
    assert "pip install 'radioplat[onnx]'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("module", CORE)
def test_so_is_an_import_of_the_core_that_fails(module, without, capsys):
    without(module)
    assert guarded(lambda: importlib.import_module(module)) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"this needs the package {module}, which is not installed" in said and f"pip install '{module}" in said


def test_a_module_of_no_package_of_ours_is_no_message():
    assert missing_module(ModuleNotFoundError(name="no_such_package")) is None
