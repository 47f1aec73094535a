"""Report of a check of teachers: an HTML page and terminal tables."""

from __future__ import annotations

from pathlib import Path

from radioplat.common import terminal
from radioplat.evaluation.pictures.pca import pca_panel
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.teachers.check_result import CheckResult
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.table import Table


def write(spec: Spec, result: CheckResult) -> Path:
    """Write ``<results_dir>/teachers_check/report.html``; return its path."""
    pictures = [
        (f"{t.name}: the map's three main components", pca_panel(t.shown, {t.name: t.maps}))
        for t in result.teachers
        if t.shown is not None and t.maps is not None
    ]
    return write_report(
        TaskFolder(spec.results_dir, "teachers_check", None).report_path,
        title="radioplat: teachers",
        tables=tables(result),
        pictures=pictures,
        spec_yaml=to_yaml(spec),
        notes=[f"{t.name}: {t.needs}" for t in result.teachers],
    )


def tables(result: CheckResult) -> list[Table]:
    """Return tables of flags, measures and normalisations."""
    flags = [[t.name, flag] for t in result.teachers for flag in t.flags or ["no problem found"]]
    facts = [[t.name, name, value] for t in result.teachers for name, value in t.facts.items()]
    norms = [[t.name, name, value] for t in result.teachers for name, value in t.agreement.items()]
    rule = "Similarity of an image to its own mirror image minus that to the most similar other one; more is better."
    return [
        Table(["teacher", "finding"], flags, title="Problems"),
        Table(["teacher", "measure", "value"], facts, title="Features"),
        Table(["teacher", "normalisation", "agreement"], norms, title="Normalisation", note=rule),
    ]


def show(result: CheckResult) -> None:
    """Print the tables and the path of the page."""
    for table in tables(result):
        rows = [[f"{c:.4g}" if isinstance(c, float) else str(c) for c in row] for row in table.rows]
        terminal.show_table(table.title, list(table.columns), rows, note=table.note)
    terminal.say(f"report: {result.report}")
