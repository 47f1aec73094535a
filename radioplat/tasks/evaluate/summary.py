"""The HTML page of an evaluation, and its pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import torch

from radioplat.errors import SpecError, problems_of
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.sample_maps import SampleMaps, Shown
from radioplat.evaluation.metrics.fidelity import size_of
from radioplat.evaluation.metrics.knn import Knn
from radioplat.evaluation.metrics.metric import Picture, percentage
from radioplat.evaluation.pictures.pca import pca_panel
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.side_by_side import ModelRow, model_notes, models_tables
from radioplat.tracking.attempts.goodput import Goodput
from radioplat.tracking.record_versions import check_readable
from radioplat.tracking.report.curves import curves_from_status
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.teacher_cost import TeacherCosts

_STUDENT = "student"
_COLOURS = "Equal colours are equal features: three principal components of the spatial features, at unit length."


def write_summary(
    spec: Spec,
    folder: TaskFolder,
    checkpoint: Path | None,
    findings: Findings,
    classes: list[str],
    models: Sequence[ModelRow] = (),
    headline: str = "",
    shown: Shown | None = None,
) -> tuple[Path, list[Picture]]:
    """Write ``report.html`` (and ``pictures.png``) into ``folder``; returns the page's path, and its pictures.

    Args:
        checkpoint: the evaluated student; None for ``models``.
        headline: of the page of ``models``; default: the kNN accuracy of each.
        shown: the images that ``findings.sample`` has in place of held-out ones.
    """
    notes = [f"Classes of the labels: {len(classes)}", *findings.absent]
    if checkpoint is None:
        notes = [f"{row.name}: {row.path}" for row in models] + model_notes(models) + notes
        pictures = _of_models(findings.sample, [row.name for row in models], shown) + findings.pictures
        tables = [*models_tables(models), *findings.tables()]
        title = f"radioplat: {len(models)} models side by side"
        path = write_report(
            folder.report_path,
            title=title,
            headline=headline or _headline(findings),
            tables=tables,
            pictures=pictures,
            spec_yaml=to_yaml(spec),
            remarks=notes,
        )
        return path, pictures
    pictures = []
    if (sample := findings.sample) is not None and sample.maps:
        panel = pca_panel(sample.images, *_columns(sample))
        (folder.path / "pictures.png").write_bytes(panel)
        caption = f"{_COLOURS} A student's head is shown in its teacher's components, scaled to its own contrast."
        pictures += [(caption, panel), *_over_resolutions(sample)]
    pictures += findings.pictures
    status = checkpoint.parent / "status.json"
    # The measurement is done: records of another version cost the page its curves, not the user the figures.
    unreadable = problems_of(check_readable, checkpoint.parent)
    notes += [f"Without curves and costs of the run: {problem}" for problem in unreadable]
    curves = curves_from_status(status) if status.exists() and not unreadable else {}
    teacher_costs = None if unreadable else TeacherCosts.read(checkpoint.parent)
    account = None if unreadable else Goodput.read(checkpoint.parent)
    costs = [*([teacher_costs.table()] if teacher_costs else []), *(account.tables() if account else [])]
    costs = [table for table in costs if table.rows]
    path = write_report(
        folder.report_path,
        title=f"radioplat: {checkpoint.name}",
        headline=_headline(findings),
        tables=[*findings.tables(), *costs],
        # Totals of the run: the tables have their last values.
        curves={n: curve for n, curve in curves.items() if not n.startswith(("cost/", "goodput/", "run/"))},
        images_per_step=_images_per_step(checkpoint.parent / "experiment.yaml"),
        pictures=pictures,
        spec_yaml=to_yaml(spec),
        remarks=[f"Checkpoint: {checkpoint}", *notes],
    )
    return path, pictures


def _headline(findings: Findings) -> str:
    """Return the kNN accuracy of every model in a sentence; empty without labels."""
    results = findings.of_metric(Knn)
    figures = ", ".join(f"{name} {percentage(result.top1)}" for name, result in results.items())
    return f"kNN accuracy on held-out images: {figures}." if figures else ""


def _images_per_step(experiment: Path) -> int:
    """Return the global batch size of the run that wrote ``experiment``; 0 if that is not known."""
    if not experiment.exists():
        return 0
    with contextlib.suppress(SpecError):  # of a version with other fields
        return load_spec(experiment).global_batch_size
    return 0


def _of_models(sample: SampleMaps | None, names: Sequence[str], shown: Shown | None) -> list[Picture]:
    """Draw the map of each model, in the components of the first model if its features have the same width."""
    maps = {name: sample.maps[name] for name in names if name in sample.maps} if sample is not None else {}
    if sample is None or not maps:
        return []
    first = next(iter(maps))
    same = {name: first for name, value in maps.items() if value.shape[-1] == maps[first].shape[-1]}
    which = "All have" if len(same) == len(maps) else f"Those of {'; '.join(same)} have"
    others = f" {which} the components and range of {first}." if len(same) > 1 else ""
    about = f" {shown.about}" if shown is not None else ""
    return [(f"{_COLOURS}{others}{about}", pca_panel(sample.images, maps, same, stretch=False))]


def _over_resolutions(sample: SampleMaps) -> list[Picture]:
    """Draw the student at each resolution: its own map, and its map for each teacher next to that teacher's."""
    students = sorted((n for n in sample.maps if n == _STUDENT or size_of(n)), key=lambda n: size_of(n) or 0)
    if len(students) < 2:
        return []
    own = {name: sample.maps[name] for name in students}
    caption = (
        "The student's own features at each resolution, in components and range of the first: a mode switch shows "
        "as a change of colour."
    )
    pictures = [(caption, pca_panel(sample.images, own, dict.fromkeys(students, students[0]), stretch=False))]
    for teacher in (t for t in sample.maps if f"{students[0]}/{t}" in sample.maps):
        columns = {teacher: sample.maps[teacher]}
        columns |= {f"{name} as {teacher}": sample.maps[f"{name}/{teacher}"] for name in students}
        caption = f"{teacher}, and the student as {teacher} at each resolution"
        pictures.append((caption, pca_panel(sample.images, columns, dict.fromkeys(columns, teacher))))
    return pictures


def _columns(sample: SampleMaps) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return maps in the order of the columns, and which of them share a teacher's space."""
    maps, same_space = {}, {}
    teachers = {name.partition("/")[2] for name in sample.maps if "/" in name}
    for name in (name for name in sample.maps if name in teachers):
        maps[name] = sample.maps[name]
        for student in ("untrained student", _STUDENT):
            if f"{student}/{name}" in sample.maps:
                title = f"{student} as {name}"
                maps[title], same_space[title] = sample.maps[f"{student}/{name}"], name
    if _STUDENT in sample.maps:
        maps["student backbone"] = sample.maps[_STUDENT]
    return maps, same_space
