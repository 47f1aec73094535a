"""What README and the other pages claim is what was measured, and no more; the licence is whole."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of apache.org/licenses/LICENSE-2.0.txt


def rows(page: str) -> dict[str, list[str]]:
    """The table of held-out images in a page, by its first column."""
    table = (ROOT / page).read_text().split("| on held-out images |", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name: rest for name, *rest in cells}


FIGURES = {
    "kNN, teacher (lite0)": "knn_teacher",
    "kNN, what was cut out of it, untaught": "knn_start",
    "kNN, the same, fitted in closed form": "knn_fitted",
    "kNN, student": "knn_student",
    "kNN, student in INT8": "knn_int8",
    "kNN in the teacher's index, untaught": "index_start",
    "kNN in the teacher's index, fitted": "index_fitted",
    "kNN in the teacher's index, student": "index_student",
    "kNN in the teacher's index, student in INT8": "index_int8",
    "share of the teacher's kNN, student": "knn_kept",
    "share of the teacher's kNN, in INT8": "int8_knn_kept",
    "multiply-accumulates over the teacher's": "macs_ratio",
    "INT8 file over the teacher's fp32 weights": "bytes_ratio",
    "latency in INT8 over the teacher's": "latency_ratio",
    "latency in INT8 over the student's in floats": "latency_ratio_float",
}


@pytest.mark.parametrize("page", ["README.md", "docs/measurements/quickstart.md"])
def test_quickstart_figures_are_the_means_of_three_seeds(page):
    measured = json.loads((ROOT / "docs" / "receipts" / "quickstart_seeds.json").read_text())
    assert len(measured["seeds"]) >= 3 and list(rows(page)) == list(FIGURES)
    for name, (shown, spread) in rows(page).items():
        values = [seed[FIGURES[name]] for seed in measured["seeds"].values()]
        step = 5e-4
        assert float(shown) == pytest.approx(statistics.fmean(values), abs=step * 1.2), name
        low, high = map(float, spread.split(" to "))
        assert (low, high) == pytest.approx((min(values), max(values)), abs=step * 1.2), name


@pytest.mark.parametrize("page", ["README.md", "docs/measurements/quickstart.md"])
def test_quickstart_sentence_is_the_means(page):
    measured = json.loads((ROOT / "docs" / "receipts" / "quickstart_seeds.json").read_text())
    sentence = (ROOT / page).read_text().split("**With ", 1)[1].split("**", 1)[0]
    keys = ("macs_ratio", "knn_kept", "int8_knn_kept", "bytes_ratio")
    assert [int(each) for each in re.findall(r"(\d+)%", sentence)] == [round(100 * measured[key]) for key in keys]
    taught = (ROOT / page).read_text().split("**In the teacher's own index", 1)[1].split("**", 1)[0]
    keys = ("index_student", "index_start")
    assert [float(each) for each in re.findall(r"0\.\d+", taught)] == [round(measured[key], 2) for key in keys]


def test_quickstart_on_other_pictures_is_what_the_judge_measured():
    judge = json.loads((ROOT / "docs" / "receipts" / "quickstart_judge.json").read_text())["judge"]
    page = (ROOT / "docs" / "measurements" / "quickstart.md").read_text()
    paragraph = page.split("**On other pictures.**", 1)[1].split("\n\n", 1)[0]
    right = [100 * judge[name]["pictures.knn"]["value"] for name in ("teacher", "start", "fitted", "student")]
    assert [float(each) for each in re.findall(r"([\d.]+)%", paragraph)] == pytest.approx(right, abs=0.06)
    expected = []
    for figure in ("pictures.knn", "scenes.knn"):
        for other in ("start", "fitted", "teacher"):
            found = judge[f"student - {other}"][figure]
            values = [found["difference"], found["lower"], found["upper"]]
            below = (figure, other) == ("pictures.knn", "teacher")  # the page has it with the other sign
            expected += [-values[0], -values[2], -values[1]] if below else values
    shown = [float(each) for each in re.findall(r"(?<![\d.])-?0\.\d{3}\b", paragraph)]
    assert shown == pytest.approx(expected, abs=6e-4)


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


def test_pages_name_every_python_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [name.rpartition(" ")[2] for name in project["classifiers"] if "Python :: 3." in name]
    named = {}
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        for listed in re.findall(r"Python ((?:3\.\d+, )*3\.\d+ or 3\.\d+)", page.read_text()):
            named[page.name] = re.findall(r"3\.\d+", listed)
    assert {"README.md", "CONTRIBUTING.md", "install.md", "user_guide.md", "first_student.md"} <= named.keys()
    assert {name: each for name, each in named.items() if each != versions} == {}


def test_the_licence_is_the_canonical_text_and_belongs_to_the_package():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE", "NOTICE"]


# Of the Citation File Format 1.2.0: the fields of a file, those that it must have, and those of an author.
CITATION = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip
REQUIRED = {"authors", "cff-version", "message", "title"}
PERSON = {
    "affiliation",
    "alias",
    "email",
    "family-names",
    "given-names",
    "name-particle",
    "name-suffix",
    "orcid",
    "website",
}


def test_the_citation_file_has_the_fields_of_its_format_and_the_packages_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert REQUIRED <= cited.keys() <= CITATION
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert (str(cited["version"]), cited["license"]) == (project["version"], project["license"])
    assert cited["authors"] and all("name" in author or author.keys() <= PERSON for author in cited["authors"])
    assert [author["name"] for author in cited["authors"]] == [author["name"] for author in project["authors"]]
    assert all(isinstance(cited[name], str) for name in ("title", "message"))
    assert all((ROOT / path).exists() for path in re.findall(r"docs/[\w/]+\.md", cited["message"]))
