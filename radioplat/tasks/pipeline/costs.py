"""The progress and the cost of a node, from what its runs record in its folder."""

from __future__ import annotations

from pathlib import Path

from radioplat.spec.loading.students import FOLDER as STUDENTS
from radioplat.tasks.pipeline.record import NodeEntry
from radioplat.tracking.attempts.goodput import FILE, Goodput, goodput
from radioplat.tracking.status import read_status
from radioplat.training.loop.ended_student import FILE as ENDED

STATUS, TASK = "status.json", "distill"


def last_step(folder: Path) -> tuple[int, int]:
    """Return the last step and the number of steps of the run in a node's folder that wrote last; zeros for none.

    Of several students it is the step of the one that is furthest behind, without those that diverged.
    """
    runs: dict[Path, list[Path]] = {}
    for path in folder.rglob(STATUS):
        home = path.parents[1]  # of <results_dir>/<task>/status.json
        student = home.parent.name == STUDENTS and home != folder
        if student and path.parent.name != TASK:
            continue  # of an evaluation or an export that follows
        runs.setdefault(home.parents[1] if student else home, []).append(path)
    states: list[tuple[int, int, int]] = []  # time of the last line, step and number of steps of each run
    for home, logs in runs.items():
        steps = {path: _last_step(path) for path in logs}
        learners = [path for path in logs if path.parents[1] != home] or [path for path in logs if steps[path][1]]
        learners = [path for path in learners if not (path.parent / ENDED).exists()] or learners
        if most := max((steps[path][1] for path in learners), default=0):
            written = max(path.stat().st_mtime_ns for path in logs)
            states.append((written, min(steps[path][0] for path in learners), most))
    return max(states)[1:] if states else (0, 0)


def _last_step(path: Path) -> tuple[int, int]:
    for line in reversed(read_status(path)):
        if "max_step" in line:
            return int(line["step"]), int(line["max_step"])
    return 0, 0


def add_costs(entry: NodeEntry, folder: Path) -> None:
    """Set steps and costs of ``entry``, summed over all runs below its folder and all their starts.

    Of a run that has not ended, the price and the teachers' time are unknown yet.
    """
    entry.step, entry.steps = last_step(folder)
    accounts = [account for path in sorted(folder.rglob(FILE)) if (account := _account(path.parent)) is not None]
    entry.gpu_seconds = sum(account.gpu_seconds + account.teacher_gpu_seconds for account in accounts)
    entry.cpu_seconds = sum(account.cpu_seconds + account.teacher_cpu_seconds for account in accounts)
    prices = [account.price for account in accounts if account.price is not None]
    entry.price = sum(prices) if prices else None


def _account(folder: Path) -> Goodput | None:
    """Return the account of a run: the one written at its end, or if it has run further since, a new count."""
    counted, ended = goodput(folder), Goodput.read(folder)
    if counted is not None and ended is not None and ended.wall >= counted.wall - 1e-6:
        return ended
    return counted
