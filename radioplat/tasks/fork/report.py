"""The arms of a fork side by side: their tables, and a page with the curves of their losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radioplat.tasks.fork.result import ArmResult, ForkResult
from radioplat.tracking.report.curves import Curve, curves_from_status
from radioplat.tracking.report.page import write_report
from radioplat.tracking.table import Table

PAGE = "report.html"


def arms_tables(result: ForkResult) -> list[Table]:
    """Return the figures of the step that all begin from and of each arm; with fidelities, if there are any."""
    unit, start = result.unit, f"step {result.at}"
    rows: list[tuple[str, dict[str, float], ArmResult | None]] = [(start, result.start_figures, None)]
    rows = [row for row in rows if row[1]] + [(arm.name, arm.figures, arm) for arm in result.arms]
    gains = [arm.knn_gain if arm else None for _, _, arm in rows]
    each = [result.gain_per_hour(arm) if arm else None for _, _, arm in rows]
    columns: dict[str, list[Any]] = {
        "arm": [name for name, _, _ in rows],
        "steps": [arm and arm.steps for _, _, arm in rows],
        "last loss": [arm and arm.loss for _, _, arm in rows],
        "kNN, %": [f"{100 * figures['knn']:.1f}" if "knn" in figures else None for _, figures, _ in rows],
        "gain": [gain and f"{100 * gain.difference:+.1f}" for gain in gains],
        "from": [gain and f"{100 * gain.low:+.1f}" for gain in gains],
        "to": [gain and f"{100 * gain.high:+.1f}" for gain in gains],
        f"{unit}-hours": [arm and f"{arm.hours(unit):.3g}" for _, _, arm in rows],
        f"a {unit}-hour": [None if gain is None else f"{100 * gain:+.3g}" for gain in each],
    }
    tables = [_table(columns, f"Arms from {start}", " ".join(_notes(result, columns)))]
    known = [name for name in dict.fromkeys(n for _, f, _ in rows for n in f) if name.startswith("fidelity/")]
    if known:
        figures = {name: [row[1].get(name) for row in rows] for name in known}
        titles = {n.removeprefix("fidelity/").replace("/", " "): _shown(values) for n, values in figures.items()}
        note = "The mean centred cosine to each teacher, on held-out images."
        tables.append(_table({"arm": columns["arm"], **titles}, "Fidelity", note))
    return tables


def write_arms_report(result: ForkResult, run: Path, images_per_step: int) -> Path:
    """Write ``report.html`` into the folder of a fork: the arms' table, changes and losses, a chart for each loss.

    Args:
        run: the folder of the run that was forked.
        images_per_step: its global batch.
    """
    changes = Table(
        ["arm", "changes", "student"],
        [[arm.name, " ".join(arm.changes) or "none", str(arm.student)] for arm in result.arms],
        title="What each arm changed",
    )
    notes = [
        f"all arms begin with the weights and moments of {result.start}, and see the same images in the same order",
        *(f"{arm.name}: its weights are those of {arm.same_as}" for arm in result.arms if arm.same_as),
    ]
    if result.evaluation is not None:
        notes.append(f"pictures and all metrics: {result.evaluation}")
    return write_report(
        result.folder / PAGE,
        title=f"Arms from step {result.at} of {run}",
        tables=[*arms_tables(result), changes],
        curves=arms_curves(result.arms),
        images_per_step=images_per_step,
        notes=notes,
        remarks=[
            "The loss of an arm with other losses or teachers is another sum: compare the charts of single terms.",
            "A chart has a line for each arm that has the term.",
        ],
    )


def arms_curves(arms: Sequence[ArmResult]) -> dict[str, Curve]:
    """Return the losses of all arms, so named that :func:`group_curves` makes a chart for each loss, a line an arm."""
    curves: dict[str, Curve] = {}
    for arm in arms:
        for name, curve in curves_from_status(arm.student.parent / "status.json").items():
            first, *rest = name.split("/")
            if first == "loss":
                curves["/".join(["loss", *([" ".join(rest)] if rest else []), arm.name])] = curve
    return dict(sorted(curves.items(), key=lambda pair: (pair[0].count("/"), pair[0].rpartition("/")[0])))


def _table(columns: dict[str, list[Any]], title: str, note: str) -> Table:
    """Return a table without the columns that no row has."""
    kept = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    return Table(list(kept), [list(cells) for cells in zip(*kept.values(), strict=True)], title, note)


def _shown(values: Sequence[float | None]) -> list[str | None]:
    return [None if value is None else f"{value:.3f}" for value in values]


def _notes(result: ForkResult, columns: dict[str, list[Any]]) -> list[str]:
    """Return sentences that explain the columns that have a value."""
    unit, first = result.unit, result.arms[0].name
    explained = {
        "gain": f"Gain: percentage points of kNN beside {first}, on the same images; from, to: its 95 % interval.",
        f"{unit}-hours": f"{unit}-hours: allocated to the arm's workers and teachers, used or idle.",
        f"a {unit}-hour": f"A {unit}-hour: points of kNN since step {result.at}, divided by these hours.",
    }
    return [text for title, text in explained.items() if any(cell is not None for cell in columns[title])]
