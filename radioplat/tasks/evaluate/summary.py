"""The findings as tables, pictures and one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.pictures.masks import answers_panel
from radioplat.evaluation.pictures.pca import pca_panel
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.side_by_side import ModelRow, models_table, remarks
from radioplat.tasks.evaluate.tables import all_tables, size_of
from radioplat.tracking.attempts.goodput import Goodput
from radioplat.tracking.report.curves import curves_from_status
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.teacher_cost import Bill

_STUDENT = "student"


def write_summary(
    spec: Spec,
    folder: TaskFolder,
    checkpoint: Path | None,
    findings: Findings,
    classes: list[str],
    models: Sequence[ModelRow] = (),
) -> tuple[Path, list[tuple[str, bytes]]]:
    """Write ``report.html`` (and ``pictures.png``) into ``folder``; returns the page's path, and its pictures.

    Args:
        checkpoint: what was evaluated; None where ``models`` were.
    """
    notes = [f"Classes of the labels: {len(classes)}", *findings.absent]
    if checkpoint is None:
        notes = [f"{row.name}: {row.path}" for row in models] + remarks(models) + notes
        pictures = _of_models(findings, [row.name for row in models]) + _of_answers(findings)
        tables = [models_table(models), *all_tables(findings)]
        title = f"radioplat: {len(models)} models side by side"
        path = write_report(
            folder.report_path, title=title, tables=tables, pictures=pictures, spec_yaml=to_yaml(spec), notes=notes
        )
        return path, pictures
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
        pictures += _over_resolutions(findings)
    pictures += _of_answers(findings)
    status = checkpoint.parent / "status.json"
    curves = curves_from_status(status) if status.exists() else {}
    bill = Bill.read(checkpoint.parent)
    account = Goodput.read(checkpoint.parent)
    costs = [*([bill.table()] if bill else []), *(account.tables() if account else [])]
    costs = [table for table in costs if table.rows]
    path = write_report(
        folder.report_path,
        title=f"radioplat: {checkpoint.name}",
        tables=[*all_tables(findings), *costs],
        # These are of the whole run up to a step: the tables have the last ones.
        curves={n: curve for n, curve in curves.items() if not n.startswith(("cost/", "goodput/", "run/"))},
        pictures=pictures,
        spec_yaml=to_yaml(spec),
        notes=[f"Checkpoint: {checkpoint}", *notes],
    )
    return path, pictures


def _of_models(findings: Findings, names: Sequence[str]) -> list[tuple[str, bytes]]:
    """The map of each model, along the axes of the first where its features have that width."""
    maps = {name: findings.maps[name] for name in names if name in findings.maps}
    if findings.shown is None or not maps:
        return []
    first = next(iter(maps))
    same = {name: first for name, value in maps.items() if value.shape[-1] == maps[first].shape[-1]}
    caption = "Spatial features of the backbones by three main components: the first model's, where widths agree."
    return [(caption, pca_panel(findings.shown, maps, same, stretch=False))]


def _of_answers(findings: Findings) -> list[tuple[str, bytes]]:
    """What decoders say of the first held-out images."""
    captions = {"segmentation": "Classes of pixels", "change": "What has changed between two images"}
    told = "by a decoder on each frozen map. Black is class 0, grey has no class."
    return [(f"{captions[name]}, {told}", answers_panel(answers)) for name, answers in findings.answers.items()]


def _over_resolutions(findings: Findings) -> list[tuple[str, bytes]]:
    """The student at each resolution: its own map, and beside each teacher's."""
    assert findings.shown is not None
    students = sorted((n for n in findings.maps if n == _STUDENT or size_of(n)), key=lambda n: size_of(n) or 0)
    if len(students) < 2:
        return []
    own = {name: findings.maps[name] for name in students}
    found = [
        (
            "The student's own features at each resolution, all along the axes and in the span of its usual one: a "
            "student that switches changes colour.",
            pca_panel(findings.shown, own, dict.fromkeys(students, _STUDENT), stretch=False),
        )
    ]
    teachers = [t for t in findings.maps if f"{_STUDENT}/{t}" in findings.maps]
    for teacher in teachers:
        columns = {teacher: findings.maps[teacher]}
        columns |= {f"{name} as {teacher}": findings.maps[f"{name}/{teacher}"] for name in students}
        space: dict[str, str] = {title: teacher for title in columns}
        found.append((f"{teacher}, and the student as {teacher} at each resolution", _panel(findings, columns, space)))
    return found


def _panel(findings: Findings, columns: dict[str, torch.Tensor], space: dict[str, str]) -> bytes:
    assert findings.shown is not None
    return pca_panel(findings.shown, columns, space)


def _columns(findings: Findings):
    """Maps in the order of the columns, and which of them share a teacher's space."""
    maps, same_space = {}, {}
    taught = {name.partition("/")[2] for name in findings.maps if "/" in name}
    for name, value in findings.maps.items():
        if "/" in name:
            continue
        if name in taught:
            maps[name] = value
            for student in ("untrained student", "student"):
                key = f"{student}/{name}"
                if key in findings.maps:
                    title = f"{student} as {name}"
                    maps[title], same_space[title] = findings.maps[key], name
    if "student" in findings.maps:
        maps["student backbone"] = findings.maps["student"]
    return maps, same_space
