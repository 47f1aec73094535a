"""The progress and the cost of a node, from what its runs record in its folder."""

from __future__ import annotations

from pathlib import Path

from radioplat.tasks.pipeline.record import NodeEntry
from radioplat.tracking.attempts.goodput import FILE, Goodput, goodput
from radioplat.tracking.status import read_status


def last_step(folder: Path) -> tuple[int, int]:
    """Return the last step and the number of steps of the run in a node's folder that wrote last; zeros for none."""
    logs = [path for path in folder.rglob("status.json") if (path.parent / FILE).exists()]
    if not logs:
        return 0, 0
    latest = max(logs, key=lambda path: path.stat().st_mtime_ns)
    for line in reversed(read_status(latest)):
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
