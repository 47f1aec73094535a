"""Record how a run uses its wall time, over all attempts and starts, in ``accounts.jsonl``.

Rank 0 of the workers and the driver write the file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from radioplat.design.run import Run
from radioplat.spec.schema.cluster import Placement
from radioplat.tracking.attempts.goodput import (
    BEGIN,
    END,
    FILE,
    PARTS,
    RUN,
    STEPS,
    Goodput,
    compact,
    count,
    goodput,
    held_by_replicas,
    price_of,
    read_accounts,
)
from radioplat.tracking.json_lines import append_line
from radioplat.tracking.teacher_cost import Prices, TeacherCosts
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import IMBALANCE, StepRecord

_EVERY_S = 30.0  # between two lines; one more is written at each checkpoint
_LOOK_S = 5.0  # greatest age of the values that figures() returns


class Accounts(StepHook):
    """Measure the time that one attempt spends in each part of training; rank 0 writes, other ranks write nothing.

    Args:
        on_cluster: True if Ray started the worker; otherwise it uses all CPUs of this machine.
        costs: costs of the teachers, as each student pays for them; kept up to date by other hooks.
    """

    name = "accounts"

    def __init__(
        self,
        run: Run,
        rank: int,
        world_size: int,
        attempt: int,
        step: int,
        on_cluster: bool,
        costs: Sequence[TeacherCosts],
    ) -> None:
        self._run, self._active, self._attempt, self._teacher_costs = run, rank == 0, attempt, costs
        self._sums = dict.fromkeys(PARTS, 0.0)
        self._samples = 0
        self._step = step
        self._first: float | None = None
        self._at_checkpoint = dict(self._sums)
        self._written = self._counted_at = 0.0
        self._last: dict[str, float] = {}
        if self._active:
            gpus = world_size if torch.cuda.is_available() else 0
            cluster, decode = run.spec.cluster, run.spec.dataset.workers
            cpus = world_size * (cluster.cpus_per_worker + decode * cluster.cpus_per_decode)
            cpus = cpus if on_cluster else os.cpu_count() or 1
            held = {"world_size": world_size, "on_cluster": on_cluster, "gpus": gpus, "cpus": cpus}
            _append(run.folder, {"event": BEGIN, "attempt": attempt, "step": step, **held})
            self._before = compact(read_accounts(run.folder))

    def begin_step(self, step: int) -> None:
        """Record the time of the first step, which ends start-up or recovery."""
        if self._first is None:
            self._first = time.time()

    def after_step(self, record: StepRecord) -> None:
        """Add the time and samples of a step; write a line if the last one is more than 30 seconds old."""
        data = min(record.wait_data, record.seconds)
        teachers = min(record.wait_teachers, record.seconds - data)
        students = min(record.wait_students, record.seconds - data - teachers)
        busy = record.seconds - data - teachers - students
        imbalance = record.figures.get(IMBALANCE, 1.0)
        ranks = busy * (1 - 1 / max(1.0, imbalance))
        self._sums["data"] += data
        self._sums["teachers"] += teachers
        self._sums["students"] += students
        self._sums["ranks"] += ranks
        self._sums["useful" if record.moved else "skipped"] += busy - ranks
        if record.step >= self._step:  # the first of the students that take this step
            self._samples += self._run.spec.global_batch_size
        self._step = max(self._step, record.step + 1)
        if time.monotonic() - self._written > _EVERY_S:
            self.write()

    def spent(self, part: str, seconds: float) -> None:
        """Add ``seconds`` spent on ``part``: ``checkpoint`` or ``validation``. After a checkpoint, write a line."""
        self._sums[part] += seconds
        if part == "checkpoint":
            self._at_checkpoint = dict(self._sums)
            self.write()  # a later attempt may resume from this checkpoint

    def undone(self) -> None:
        """Count the useful time since the last checkpoint as skipped, because those steps were rolled back.

        Of several students one was rolled back, and has its part of that time.
        """
        lost = (self._sums["useful"] - self._at_checkpoint["useful"]) / len(self._run.students)
        self._sums["useful"] -= lost
        self._sums["skipped"] += lost

    def figures(self) -> dict[str, float]:
        """Return shares of the whole run's wall time, restarts and price, at most 5 seconds old.

        Returns {} before the first step and on ranks other than 0.
        """
        if self._active and self._first is not None and time.monotonic() - self._counted_at > _LOOK_S:
            self._counted_at = time.monotonic()
            totals = count([*self._before, self._line()])
            totals.price = run_price(self._run, totals, TeacherCosts.total(self._teacher_costs))
            self._last = totals.kpi()
        return self._last

    def write(self) -> None:
        """Append a line with the sums so far to ``accounts.jsonl``; nothing before the first step or on other ranks."""
        if self._active and self._first is not None:
            self._written = time.monotonic()
            _append(self._run.folder, self._line())

    def _line(self) -> dict[str, Any]:
        place = {"attempt": self._attempt, "step": self._step, "samples": self._samples, "first_time": self._first}
        return {"event": STEPS, "time": time.time(), **place, **self._sums}


@contextlib.contextmanager
def session(task_folder: Path) -> Iterator[None]:
    """Record the beginning and end of one start of the command; the driver runs everything inside this block."""
    _append(task_folder, {"event": RUN})
    try:
        yield
    finally:
        _append(task_folder, {"event": END})


def run_price(run: Run, totals: Goodput, teacher_costs: TeacherCosts | None) -> float | None:
    """Return the price of the run so far; None without prices."""
    cluster = run.spec.cluster
    prices = Prices(cluster.gpu_hour_price, cluster.cpu_hour_price)
    return price_of(totals, teacher_costs, prices, *_shared_and_inline(run, totals))


def _shared_and_inline(run: Run, totals: Goodput) -> tuple[list[str], list[str]]:
    """Return the teachers whose pool serves other runs too, and those that compute inside the workers."""
    inline = [t.name for t in run.teachers if t.service.placement is Placement.inline or not totals.on_cluster]
    return [t.name for t in run.teachers if t.service.pool], inline


def settled(run: Run, students: Sequence[TeacherCosts | None] = ()) -> Goodput | None:
    """Compute the totals of a run that has ended, with its price and teachers, and write them to its folder.

    A failed write is ignored.

    Args:
        students: of several students with one account, what the teachers cost each of them.

    Returns:
        None if the run has no accounts.
    """
    totals = goodput(run.folder)
    if totals is None:
        return None
    known = [costs for costs in students if costs is not None]
    costs = TeacherCosts.total(known) if known else TeacherCosts.read(run.folder)
    totals.price = run_price(run, totals, costs)
    for held in held_by_replicas(costs, *_shared_and_inline(run, totals)):
        totals.teacher_gpu_seconds += held.gpu_seconds
        totals.teacher_cpu_seconds += held.cpu_seconds
    with contextlib.suppress(OSError):
        totals.write(run.folder)
    return totals


def _append(task_folder: Path, line: dict[str, Any]) -> None:
    """Append a line; an OSError such as a full disk is ignored, because accounting must not end a run."""
    with contextlib.suppress(OSError):
        append_line(task_folder / FILE, {"time": time.time(), **line})
