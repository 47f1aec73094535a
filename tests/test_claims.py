"""What README and the other pages claim is what was measured, and no more; the licence is whole."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of apache.org/licenses/LICENSE-2.0.txt


def rows(page: str) -> dict[str, list[str]]:
    """The table of held-out images in a page, by its first column."""
    table = (ROOT / page).read_text().split("| on held-out images |", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name: rest for name, *rest in cells}


def test_readme_shows_what_the_quickstart_page_measured():
    shown, measured = rows("README.md"), rows("docs/quickstart.md")
    assert shown == measured and "kNN, student" in shown


def test_readme_shows_no_single_run_beside_the_means():
    """The table that one run printed: its student was luckier than the mean in every row."""
    readme = (ROOT / "README.md").read_text()
    assert not re.search(r"(kNN|fidelity)[^|\n]*│", readme)


@pytest.mark.parametrize(
    "claim",
    [
        r"losses are the same",
        r"TAO [^.\n]*YAML runs as",
        r"\| built \||│ built │|  built +yes",  # of an engine: see radioplat.exporting.engines.engine_record.state_of
    ],
)
def test_no_page_claims_what_was_not_seen(claim):
    found = [page.name for page in PAGES if re.search(claim, page.read_text().replace("*", "").replace("`", ""))]
    assert found == []


def test_the_licence_is_the_canonical_text_and_belongs_to_the_package():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE", "NOTICE"]
