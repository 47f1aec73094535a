"""mypy passes over no module of radioplat, and its types reach who installs it."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOL = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
OVERRIDES = TOOL["mypy"]["overrides"]


def _exists(module: str) -> bool:
    path = ROOT.joinpath(*module.removesuffix(".*").split("."))
    return path.is_dir() if module.endswith(".*") else path.with_suffix(".py").is_file() or path.is_dir()


def _modules(override: dict) -> list[str]:
    return [override["module"]] if isinstance(override["module"], str) else override["module"]


def test_overrides_name_modules_that_exist():
    own = [name for override in OVERRIDES for name in _modules(override) if name.split(".")[0] == "radioplat"]
    assert [name for name in own if not _exists(name)] == []


def test_mypy_passes_over_no_module_of_ours():
    """A module with a fault is mended, or the one line ignored with its error code and the reason."""
    lenient = {"ignore_errors", "follow_imports", "disable_error_code"}
    passed_over = [override for override in OVERRIDES if lenient & override.keys()]
    assert [name for override in passed_over for name in _modules(override) if name.split(".")[0] == "radioplat"] == []
    assert not lenient & TOOL["mypy"].keys()


def test_py_typed_is_installed_with_the_package():
    assert (ROOT / "radioplat" / "py.typed").is_file()
    assert "py.typed" in TOOL["setuptools"]["package-data"]["*"]
