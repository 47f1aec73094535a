"""The findings as tables, pictures and one HTML page."""

from __future__ import annotations

from pathlib import Path

from radioplat.evaluate.measure import Findings
from radioplat.evaluate.pictures import pca_panel
from radioplat.spec.load import to_yaml
from radioplat.spec.root import Spec
from radioplat.track.curves import curves_from_status
from radioplat.track.report import Table, write_report
from radioplat.track.results import TaskFolder
from radioplat.track.teacher_cost import Bill


def write_summary(spec: Spec, folder: TaskFolder, checkpoint: Path, findings: Findings, classes: list[str]) -> Path:
    """Write ``report.html`` (and ``pictures.png``) into ``folder``; returns the page's path."""
    pictures = []
    if findings.shown is not None and findings.maps:
        panel = pca_panel(findings.shown, *_columns(findings))
        (folder.path / "pictures.png").write_bytes(panel)
        pictures.append(
            (
                "Spatial features by their three main components. A student's head is shown along the axes of the "
                "teacher it speaks for, stretched to its own contrast.",
                panel,
            )
        )
    status = checkpoint.parent / "status.json"
    curves = curves_from_status(status) if status.exists() else {}
    bill = Bill.read(checkpoint.parent)
    costs = [bill.table()] if bill else []
    return write_report(
        folder.report_path,
        title=f"radioplat: {checkpoint.name}",
        tables=[t for t in (fidelity_table(findings), knn_table(findings), *costs) if t.rows],
        # Costs are means since the first step: the table has the last ones.
        curves={name: curve for name, curve in curves.items() if not name.startswith("cost/")},
        pictures=pictures,
        spec_yaml=to_yaml(spec),
        notes=[f"Checkpoint: {checkpoint}", f"Classes of the kNN probe: {len(classes)}"],
    )


def fidelity_table(findings: Findings) -> Table:
    """Rows of teacher and kind; one column for each student, centred cosine with the plain one in brackets."""
    students = list(findings.fidelity)
    rows = []
    for teacher, kinds in (findings.fidelity[students[0]] if students else {}).items():
        for kind in kinds:
            values = [findings.fidelity[s][teacher][kind] for s in students]
            rows.append([teacher, kind, *(f"{v.centered:.3f} ({v.plain:.3f})" for v in values)])
    return Table(
        ["teacher", "features", *students],
        rows,
        title="Fidelity to each teacher on held-out images",
        note="Mean cosine after the teacher's training mean was taken from both sides: a constant answer scores 0. "
        "In brackets the plain cosine.",
    )


def knn_table(findings: Findings) -> Table:
    """Top-1 and top-5 of each model."""
    rows = [[name, f"{100 * r.top1:.1f} %", f"{100 * r.top5:.1f} %"] for name, r in findings.knn.items()]
    note = ""
    if findings.knn:
        any_result = next(iter(findings.knn.values()))
        note = f"{any_result.count} held-out images, {any_result.bank} labelled training images, k = {any_result.k}."
    if findings.accuracy is not None:
        rows.append(["student, its own classifier", f"{100 * findings.accuracy:.1f} %", ""])
    return Table(["model", "top-1", "top-5"], rows, title="kNN on held-out images", note=note)


def _columns(findings: Findings):
    """Maps in the order of the columns, and which of them share a teacher's space."""
    maps, same_space = {}, {}
    spoken = {name.partition("/")[2] for name in findings.maps if "/" in name}
    for name, value in findings.maps.items():
        if "/" in name:
            continue
        if name in spoken:
            maps[name] = value
            for student in ("untrained student", "student"):
                key = f"{student}/{name}"
                if key in findings.maps:
                    title = f"{student} as {name}"
                    maps[title], same_space[title] = findings.maps[key], name
    if "student" in findings.maps:
        maps["student backbone"] = findings.maps["student"]
    return maps, same_space
