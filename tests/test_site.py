"""The documentation site: `make docs` builds it without warnings, and its pages need no other server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


def test_every_page_is_in_the_site_and_can_be_searched(site):
    names = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert len(names) > 30
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert [str(name) for name in names if not (site / name).exists() or name.as_posix() not in index] == []


def test_readme_is_the_first_page_and_its_links_lead_into_the_site(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    targets = {link.partition("#")[0] for link in re.findall(r'href="([^"#]+\.html[^"]*)"', page)}
    assert "contributing.html" in targets and {target for target in targets if not (site / target).exists()} == set()


def test_no_page_loads_anything_from_another_server(site):
    loading = re.compile(r"""<(?:script|img|iframe|source)[^>]+src=["']?https?:|<link[^>]+stylesheet[^>]+https?:""")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if loading.search(page.read_text(encoding="utf-8"))] == []
