"""The documentation site: `make docs` builds it without warnings, and its pages need no other server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import radioplat
from radioplat.cli.parser import GROUPS, TASKS
from radioplat.spec.reference.fields import all_fields

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return folder


def test_every_page_is_in_the_site_and_can_be_searched(site):
    names = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert len(names) > 30
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert [str(name) for name in names if not (site / name).exists() or name.as_posix() not in index] == []


def test_readme_is_the_first_page_and_its_links_lead_into_the_site(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    targets = {link.partition("#")[0] for link in re.findall(r'href="([^"#]+\.html[^"]*)"', page)}
    assert "contribute/contributing.html" in targets
    assert [target for target in targets if not (site / target).exists()] == []


def test_no_page_loads_anything_from_another_server(site):
    loading = re.compile(r"""<(?:script|img|iframe|source)[^>]+src=["']?https?:|<link[^>]+stylesheet[^>]+https?:""")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if loading.search(page.read_text(encoding="utf-8"))] == []


def ids(page: Path) -> set[str]:
    """What links to a page may name."""
    return set(re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8")))


def test_every_field_of_the_spec_has_an_entry_with_its_path(site):
    anchors = {page.stem: ids(page) for page in (site / "reference" / "fields").glob("*.html")}
    paths = [path.replace("[]", "") for path in all_fields()]
    assert [path for path in paths if path not in anchors.get(path.partition(".")[0], anchors["index"])] == []


def test_every_command_has_an_entry(site):
    names = [*TASKS, *(f"{group}-{verb}" for group, (_, verbs) in GROUPS.items() for verb in verbs)]
    assert {f"radioplat-{name}" for name in names} <= ids(site / "reference" / "commands.html")


def test_every_public_name_of_python_has_an_entry_with_its_docstring(site):
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in radioplat.__all__ if f"radioplat.{name}" not in page] == []
    assert "radioplat.training.hooks.step_hook.StepHook" in ids(site / "reference" / "python.html")
    assert re.search(r"Distil a student from the spec.s teachers", page) and not re.search(r":(class|func|meth):", page)


def test_a_page_links_the_fields_and_commands_that_it_names_to_the_reference(site):
    page = (site / "train" / "training.html").read_text(encoding="utf-8")
    assert '<a href="../reference/fields/train.html#train.precision"><code>train.precision</code></a>' in page
    field = (site / "reference" / "fields" / "train.html").read_text(encoding="utf-8")
    assert re.search(r'id="train.precision".*?<a href="[^"]*training.html#precision-zero-and-offload">', field, re.S)
