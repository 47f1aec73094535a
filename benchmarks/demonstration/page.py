"""The page of the demonstration, and its picture: losses of both runs, kills, and the number of workers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.demonstration.progress import Progress
from benchmarks.demonstration.runs import ALONE, DISTURBED
from radioplat.tracking.attempts.goodput import STEPS, goodput, read_accounts
from radioplat.tracking.report.page import write_report
from radioplat.tracking.table import Table

COLOURS = ("#2563c9", "#d9622b", "#2a8f5b", "#8a4fbf")


def write_page(home: Path, progress: Progress, figures: dict[str, Any]) -> Path:
    """Write ``demo.html`` and ``demo.png``; return the page."""
    png = picture(home, progress)
    (home / "demo.png").write_bytes(png)
    account = goodput(home / DISTURBED / "distill")
    caption = (
        "Above: the loss of each student, thin and dark in the run that was left alone, wide and pale in the one whose "
        "processes were killed, over its own clock; the lines lie on each other. Red: kills. Below: training workers."
    )
    return write_report(
        home / "demo.html",
        title=f"{figures['blows']} kills, {figures['students']} students, one hash each",
        headline=_headline(figures),
        pictures=[(caption, png)],
        tables=[*students_tables(figures), *(account.tables() if account else [])],
    )


def _headline(figures: dict[str, Any]) -> str:
    same = round(figures["hashes_equal"] * figures["students"])
    return (
        f"{same} of {figures['students']} files of weights are those of the undisturbed run, byte for byte; "
        f"{figures['missing']} samples are missing, {figures['repeated']} were used twice; the teachers computed "
        f"{figures['teacher_forwards_per_sample']:.2f} new answers for each sample, and "
        f"{figures['teacher_forwards_again']:.2f} again."
    )


def students_tables(figures: dict[str, Any]) -> list[Table]:
    """Return a table of the students' hashes and worth, and one of their teachers."""
    rows = [
        (
            name,
            each["sha256"],
            each["sha256"] == each["alone"],
            each.get("knn"),
            each.get("int8_ms"),
            each.get("float_ms"),
        )
        for name, each in figures["by_student"].items()
    ]
    note = (
        "sha256sum of student.safetensors of the run with kills; equal: the undisturbed run has the same. kNN: share "
        "of held-out crops whose photograph the judge names. ms: one image, in OpenVINO on this CPU."
    )
    columns = ["student", "sha256", "equal", "kNN", "ms in INT8", "ms in floats"]
    teachers = [(name, value) for name, value in figures.get("teachers_knn", {}).items()]
    tables = [Table(columns, rows, title="Students", note=note)]
    return [*tables, Table(["teacher", "kNN"], teachers, title="Teachers")] if teachers else tables


def picture(home: Path, progress: Progress) -> bytes:
    """Draw losses, kills and workers over the seconds of the disturbed run, as PNG."""
    from matplotlib.figure import Figure

    accounts = read_accounts(home / DISTURBED / "distill")
    begin = accounts[0]["time"] if accounts else 0.0
    when = {line["step"]: line["time"] - begin for line in accounts if line["event"] == STEPS}
    figure = Figure(figsize=(9, 5.2), dpi=144, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    for number, name in enumerate(progress.options.names):
        for run, style in ((DISTURBED, {"lw": 5, "alpha": 0.3}), (ALONE, {"lw": 1.2, "label": name})):
            curve = [(when[step], loss) for step, loss in progress.losses[run][name] if step in when]
            if curve:
                above.plot(*zip(*curve, strict=True), color=COLOURS[number % len(COLOURS)], **style)  # type: ignore[arg-type]  # numbers and one text
    for kill in progress.kills:
        above.axvline(kill.time - begin, color="#c2375a", lw=0.6, alpha=0.7)
    above.set_ylabel("loss")
    above.legend(frameon=False, ncols=len(progress.options.names))
    times, sizes = _workers(progress, begin)
    below.step(times, sizes, where="post", color="#444444")
    below.set_yticks(range(4))
    below.set_ylabel("workers")
    below.set_xlabel("seconds of the run with kills")
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


def _workers(progress: Progress, begin: float) -> tuple[Sequence[float], Sequence[int]]:
    """Return times and the number of workers from each on."""
    times, sizes = [0.0], [0]
    for event in progress.attempts:
        times.append(event.time - begin)
        sizes.append(event.world_size if event.event == "start" else 0)
    return times, sizes
