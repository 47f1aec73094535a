"""The modules that mypy passes over are modules that there are, and the types of radioplat reach who installs it."""

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


def test_ignored_modules_are_named_one_by_one():
    """A pattern would also pass over modules that are still to be written; the list may only shrink."""
    ignored = [name for override in OVERRIDES if override.get("ignore_errors") for name in _modules(override)]
    assert [name for name in ignored if "*" in name] == []
    assert ignored == sorted(set(ignored))
    assert not TOOL["mypy"].get("ignore_errors")


def test_py_typed_is_installed_with_the_package():
    assert (ROOT / "radioplat" / "py.typed").is_file()
    assert "py.typed" in TOOL["setuptools"]["package-data"]["*"]
