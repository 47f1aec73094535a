"""The tree is as docs/contribute/architecture.md says, and no folder holds more than a reader can look over."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import yaml

_spec = importlib.util.spec_from_file_location("folders", Path(__file__).with_name("folders.py"))
folders = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules["folders"] = folders  # dataclasses look there
_spec.loader.exec_module(folders)
MOST_FILES = 16


def _rows(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in text.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_the_page_has_the_folders_that_there_are():
    page = folders.PAGE.read_text(encoding="utf-8")
    written = _rows(page.split(folders.BEGIN)[1].split(folders.END)[0])
    real = _rows(folders.table())
    assert written == real, "run `python tests/folders.py`"


def test_a_folder_holds_no_more_files_than_a_reader_looks_over():
    assert [folder.path for folder in folders.folders() if folder.files > MOST_FILES] == []


def test_imports_of_the_page_point_downwards():
    """The order of pyproject.toml's import-linter contract, held against the imports that the tree has."""
    layers = re.search(r"layers = \[(.*?)\]", (folders.ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.S)[1]
    order = [name.strip() for line in re.findall(r'"(.*?)"', layers) for name in line.split(":")]
    found = [folder for folder in folders.folders() if folder.path and "/" not in folder.path]
    assert {folder.path for folder in found} | {"errors"} == set(order)
    for folder in found:
        assert all(order.index(name) > order.index(folder.path) for name in folder.imports), folder


def test_no_folder_has_a_name_that_jobs_leave_behind():
    """Ray's excludes count at any depth: a package called as one of them does not travel with a job."""
    for name in ("runtime_env", "runtime_env_pinned"):
        excluded = set(yaml.safe_load((folders.ROOT / "jobs" / f"{name}.yaml").read_text())["excludes"])
        assert not {part for folder in folders.folders() for part in folder.path.split("/")} & excluded


def test_files_that_the_page_names_are_there():
    text = folders.PAGE.read_text(encoding="utf-8").split(folders.END)[1]
    named = [
        n for n in re.findall(r"`([\w/]+(?:/|\.(?:py|json|yaml)))`", text) if "/" in n and not n.startswith("logs/")
    ]
    assert len(named) > 100
    root = folders.ROOT
    assert [name for name in named if not ((root / name).exists() or (root / "radioplat" / name).exists())] == []
