"""The findings as tables, for the report and the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping

from radioplat.evaluation.masks.segmentation import SegmentationResult
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.metrics.fidelity import FidelityResult
from radioplat.evaluation.metrics.knn import KnnResult
from radioplat.evaluation.metrics.zero_shot import ZeroShotResult
from radioplat.tracking.report.page import Table

_CLASSES = 8  # of which a table has a column each; results.json has all


def all_tables(findings: Findings) -> list[Table]:
    """Every table that has a row, in the order of the report."""
    made = (
        fidelity_table(findings),
        resolution_table(findings),
        agreement_table(findings),
        knn_table(findings),
        linear_table(findings),
        zero_shot_table(findings),
        segmentation_table(findings),
        change_table(findings),
        correspondence_table(findings),
    )
    return [table for table in made if table.rows]


def size_of(student: str) -> int | None:
    """448 for ``student at 448``; None for a student at its usual size."""
    match = re.fullmatch(r"student at (\d+)", student)
    return int(match[1]) if match else None


def fidelity_table(findings: Findings) -> Table:
    """Rows of teacher and kind; one column for each student, centred cosine with the plain one and CKA in brackets."""
    students = [name for name in findings.fidelity if not size_of(name)]
    measured = [findings.fidelity[student] for student in students]
    taught = dict.fromkeys((t, k) for by_teacher in measured for t, kinds in by_teacher.items() for k in kinds)
    rows = [
        [teacher, kind, *(_cosines(own.get(teacher, {}).get(kind)) for own in measured)] for teacher, kind in taught
    ]
    return Table(
        ["teacher", "features", *students],
        rows,
        title="Fidelity to each teacher on held-out images",
        note="Mean cosine after the teacher's training mean was taken from both sides: a constant answer scores 0. "
        "In brackets the plain cosine, then debiased linear CKA.",
    )


def _cosines(value: FidelityResult | None) -> str | None:
    if value is None:
        return None
    cka = "" if value.cka is None else f", {value.cka:.3f}"
    return f"{value.centered:.3f} ({value.plain:.3f}{cka})"


def knn_table(findings: Findings) -> Table:
    """Top-1 and top-5 of each model."""
    rows, note = _shares(findings.knn), ""
    if findings.knn:
        any_result = next(iter(findings.knn.values()))
        note = f"{any_result.count} held-out images, {any_result.bank} labelled training images, k = {any_result.k}."
    rows += [
        [f"{name}, its own classifier", f"{100 * share:.1f} %", f"{100 * findings.accuracy_top5[name]:.1f} %"]
        for name, share in findings.accuracy.items()
    ]
    return Table(["model", "top-1", "top-5"], rows, title="kNN on held-out images", note=note)


def _shares(results: Mapping[str, KnnResult | ZeroShotResult]) -> list[list[str]]:
    """Top-1 and top-5 of each model."""
    return [[name, f"{100 * r.top1:.1f} %", f"{100 * r.top5:.1f} %"] for name, r in results.items()]


def resolution_table(findings: Findings) -> Table:
    """Fidelity of the trained student at each resolution; empty where it was looked at one alone."""
    students = [name for name in findings.fidelity if name == "student" or size_of(name)]
    rows = []
    for teacher, kinds in findings.fidelity["student"].items() if any(map(size_of, students)) else ():
        for kind in kinds:
            for name in sorted(students, key=lambda n: size_of(n) or 0):
                value = findings.fidelity[name][teacher][kind]
                rows.append([teacher, kind, f"{size_of(name)} px" if size_of(name) else "usual", *_three(value)])
    return Table(
        ["teacher", "features", "student sees", "centred cosine", "plain cosine", "linear CKA"],
        rows,
        title="Fidelity at each resolution",
        note="The teacher keeps its own resolution; maps are compared on the coarser of the two grids.",
    )


def _three(value: FidelityResult) -> list[float | None]:
    return [value.centered, value.plain, value.cka]


def agreement_table(findings: Findings) -> Table:
    """Each pair of resolutions, flagged where the features switch."""
    rows = [
        [
            name if name == "backbone" else f"head for {name}",
            f"{p.low} and {p.high} px",
            *(p.agreement, p.plain, p.shift),
            p.flag or "no switch seen",
        ]
        for name, pairs in findings.agreement.items()
        for p in pairs
    ]
    return Table(
        ["features", "resolutions", "agreement", "plain cosine", "shift of the mean", "finding"],
        rows,
        title="Does the student say the same at every resolution?",
        note="Agreement: mean cosine of one image's maps at two resolutions, on the coarser grid, after one mean was "
        "taken from both; another image's map scores 0. Shift: how far the mean feature moves, in units of the "
        "features' spread. Neighbouring resolutions are judged.",
    )


def linear_table(findings: Findings) -> Table:
    """Top-1 of a linear classifier on each model's summary."""
    rows = [[name, f"{100 * r.top1:.1f} %", f"{r.weight_decay:g}"] for name, r in findings.linear.items()]
    note = ""
    if findings.linear:
        any_result = next(iter(findings.linear.values()))
        note = (
            f"{any_result.count} held-out images, fitted on {any_result.bank} labelled training images; the weight "
            "decay was chosen on a part of those."
        )
    return Table(["model", "top-1", "weight decay"], rows, title="Linear probe on held-out images", note=note)


def zero_shot_table(findings: Findings) -> Table:
    """Top-1 and top-5 by class names alone."""
    rows, note = _shares(findings.zero_shot), ""
    if findings.zero_shot:
        any_result = next(iter(findings.zero_shot.values()))
        note = f"{any_result.count} held-out images, {any_result.classes} class names; students through their head."
    return Table(["model", "top-1", "top-5"], rows, title="Zero-shot classification", note=note)


def segmentation_table(findings: Findings) -> Table:
    """What a decoder on each model's map makes of held-out images."""
    rows = [
        [name, f"{100 * r.miou:.1f} %", f"{100 * r.accuracy:.1f} %", *(_percent(value) for value in r.iou[:_CLASSES])]
        for name, r in findings.segmentation.items()
    ]
    classes = len(next(iter(findings.segmentation.values())).iou) if rows else 0
    columns = ["model", "mIoU", "pixels right", *(f"IoU {c}" for c in range(min(classes, _CLASSES)))]
    return Table(
        columns, rows, title=_decoded("Segmentation", findings.segmentation), note=_judged(findings.segmentation)
    )


def change_table(findings: Findings) -> Table:
    """What a decoder on the difference of each model's maps makes of held-out pairs."""
    rows = [
        [name, *map(_percent, (r.change_f1, r.change_precision, r.change_recall, r.change_iou, r.miou, r.accuracy))]
        for name, r in findings.change.items()
    ]
    columns = ["model", "F1", "precision", "recall", "IoU", "mIoU", "pixels right"]
    note = _judged(findings.change) + " F1, precision, recall and IoU are those of change."
    return Table(columns, rows, title=_decoded("Change", findings.change), note=note)


def _decoded(what: str, results: Mapping[str, SegmentationResult]) -> str:
    decoder = next(iter(results.values())).decoder if results else "linear"
    return f"{what} by a {decoder} {'layer' if decoder == 'linear' else 'decoder'} on frozen maps"


def _judged(results: Mapping[str, SegmentationResult]) -> str:
    if not results:
        return ""
    first = next(iter(results.values()))
    seen = sum(value is not None for value in first.iou)
    told = f"{first.images} held-out images, {seen} of {len(first.iou)} classes in them or in answers; fitted on "
    decays = [f"{name} {r.weight_decay:g}" for name, r in results.items() if r.weight_decay is not None]
    return f"{told}{first.trained_on}." + (f" Weight decays: {', '.join(decays)}." if decays else "")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


def correspondence_table(findings: Findings) -> Table:
    """PCK of each model at each threshold, with what its grid allows in brackets."""
    results = findings.correspondence
    thresholds = list(next(iter(results.values())).pck) if results else []
    rows = [
        [name, *(f"{100 * r.pck[t]:.1f} % ({100 * r.ceiling[t]:.1f} %)" for t in thresholds)]
        for name, r in results.items()
    ]
    images = next(iter(results.values())).images if results else 0
    return Table(
        ["model", *(f"PCK at {t:g}" for t in thresholds)],
        rows,
        title="Correspondence under known homographies",
        note=f"{images} images and a warped copy of each: share of positions found within that share of the side. In "
        "brackets what the model's grid allows.",
    )
