"""Goodput of a run over all its attempts and starts, computed from ``accounts.jsonl``.

Goodput is the share of wall time in useful steps: those that led to the latest weights and changed them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from radioplat.tracking.attempts.logs import cause_of
from radioplat.tracking.json_lines import read_lines
from radioplat.tracking.results import write_atomic
from radioplat.tracking.table import Table
from radioplat.tracking.teacher_cost import Prices, TeacherCost, TeacherCosts

FILE, SUMMARY = "accounts.jsonl", "goodput.json"
RUN, BEGIN, STEPS, STORAGE, END = "run", "begin", "steps", "storage", "end"  # events of accounts.jsonl
PARTS = (
    "useful",
    "skipped",
    "data",
    "teachers",
    "students",
    "ranks",
    "checkpoint",
    "validation",
)  # measured during an attempt
_LABELS = {
    "useful": "useful steps",
    "skipped": "skipped steps",
    "data": "waiting for data",
    "storage": "waiting for storage",
    "teachers": "waiting for teachers",
    "students": "waiting for other students",
    "ranks": "waiting for the slowest worker",
    "checkpoint": "checkpoints",
    "validation": "validation",
    "start": "start-up",
    "recovery": "recovery",
    "other": "other",
}


@dataclass
class Goodput:
    """Wall time of a run by activity, and its totals.

    Attributes:
        wall: seconds in which the run was active, without pauses between starts.
        seconds: of each activity; they add up to ``wall``. ``start`` is the time before the first step of a start;
            ``recovery``, after a restart of the group, the time from the checkpoint that it resumed from to its first
            step, including lost work.
        samples: of the steps that led to the latest weights.
        replayed: samples of steps that were run and lost.
        restarts: (attempt that ended, cause, detail).
        on_cluster: True if the workers were Ray's, False for a run of one process.
        gpu_seconds, cpu_seconds: allocated to the workers and decoding.
        teacher_gpu_seconds, teacher_cpu_seconds: allocated to replicas of teachers outside the workers; of a pool that
            serves other runs too, only its work for this one.
        price: of the run, None without prices in the spec.
        lost: samples missing in the ledger, None if it was not checked.
    """

    wall: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_LABELS, 0.0))
    samples: int = 0
    replayed: int = 0
    restarts: list[tuple[int, str, str]] = field(default_factory=list)
    on_cluster: bool = False
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    teacher_gpu_seconds: float = 0.0
    teacher_cpu_seconds: float = 0.0
    price: float | None = None
    lost: int | None = None

    def share(self, part: str) -> float:
        """Return the share of an activity in the wall time."""
        return self.seconds.get(part, 0.0) / self.wall if self.wall else 0.0

    def kpi(self) -> dict[str, float]:
        """Return ``goodput/<part>`` as shares, and metrics of the whole run as ``run/<name>``."""
        figures = {f"goodput/{part}": self.share(part) for part in _LABELS}
        figures |= {"run/restarts": float(len(self.restarts)), "run/samples_replayed": float(self.replayed)}
        if self.wall:
            figures["run/images_per_s"] = self.samples / self.wall
        if self.price is not None:
            figures["run/price"] = self.price
        if self.lost is not None:
            figures["run/samples_lost"] = float(self.lost)
        return figures

    def tables(self) -> list[Table]:
        """Return tables of the time by activity, of the totals, and of the restarts with their causes."""
        rows = [(_LABELS[part], f"{self.share(part):.1%}", s) for part, s in self.seconds.items() if s > 0]
        note = (
            "Waiting for data, teachers and other students is that of the slowest worker; waiting for the slowest "
            "worker is the mean over workers, estimated from their forward passes. Recovery: from the checkpoint that "
            "a restarted group resumed from to its first step, including lost work."
        )
        facts: list[tuple[str, Any]] = [("seconds in all", self.wall), ("images", self.samples)]
        facts += [("images/s", self.samples / self.wall)] if self.wall else []
        facts += [("samples lost", self.lost)] if self.lost is not None else []
        facts += [("samples replayed", self.replayed), ("restarts", len(self.restarts))]
        facts += [("price", self.price)] if self.price is not None else []
        tables = [
            Table(["part", "share", "seconds"], rows, title="Where the time went", note=note),
            Table(["figure", "value"], facts, title="The run as a whole"),
        ]
        if self.restarts:
            tables.append(Table(["attempt", "ended by", "detail"], self.restarts, title="Restarts"))
        return tables

    def write(self, task_folder: Path) -> Path:
        """Write ``goodput.json``."""
        return write_atomic(task_folder / SUMMARY, json.dumps(asdict(self) | {"kpi": self.kpi()}, indent=1) + "\n")

    @staticmethod
    def read(task_folder: Path) -> Goodput | None:
        """Read what :meth:`write` of this version wrote; None if there is no such file."""
        try:
            figures = json.loads((task_folder / SUMMARY).read_text(encoding="utf-8"))
            figures.pop("kpi", None)
            return Goodput(**figures | {"restarts": [tuple(restart) for restart in figures["restarts"]]})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def read_accounts(task_folder: Path) -> list[dict[str, Any]]:
    """Read the lines of ``accounts.jsonl``, in order; [] if there is no file. Incomplete lines are skipped."""
    with contextlib.suppress(OSError):
        return [line for line in read_lines(task_folder / FILE) if "event" in line]
    return []


def goodput(task_folder: Path) -> Goodput | None:
    """Return the goodput so far of the run in ``task_folder``; None if nothing was recorded."""
    lines = read_accounts(task_folder)
    if not lines:
        return None
    result = count(lines)
    for place, (number, _, _) in enumerate(result.restarts):
        cause, detail = cause_of(task_folder, number)
        result.restarts[place] = (number, cause or "unknown", detail)
    return result


def compact(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the lines that determine the result of :func:`count`: of each attempt the last, and the last kept one."""
    attempts = [attempt for session in _sessions(lines) for attempt in session.attempts]
    wanted: set[int] = set()
    for attempt, following in zip_longest(attempts, attempts[1:]):
        attempt.keep_up_to(None if following is None else following.first_step)
        wanted |= {id(line) for line in (attempt.kept, *attempt.lines[-1:]) if line is not None}
    return [line for line in lines if line["event"] != STEPS or id(line) in wanted]


def count(lines: Iterable[Mapping[str, Any]]) -> Goodput:
    """Compute the totals of lines; restarts have no cause yet."""
    result, lines = Goodput(), list(lines)
    sessions = _sessions(lines)
    while len(sessions) > 1 and not sessions[-1].attempts:  # there was nothing left to do, or the start was refused
        sessions.pop()
    attempts = [attempt for session in sessions for attempt in session.attempts]
    for attempt, following in zip_longest(attempts, attempts[1:]):
        attempt.keep_up_to(None if following is None else following.first_step)
        result.restarts += [] if following is None else [(attempt.number, "", "")]
        done = attempt.kept
        if done is not None:
            result.samples += done["samples"]
            result.replayed += attempt.lines[-1]["samples"] - done["samples"]
            for part in PARTS:
                result.seconds[part] += done.get(part, 0.0)  # an earlier version had fewer parts
        elif attempt.lines:
            result.replayed += attempt.lines[-1]["samples"]
    outages = sum(line["seconds"] for line in lines if line["event"] == STORAGE)
    result.seconds["storage"] = min(outages, result.seconds["data"])  # the workers' queues of batches hide the rest
    result.seconds["data"] -= result.seconds["storage"]
    for session in sessions:
        _spread(session, result, is_last=session is sessions[-1])
    result.seconds["other"] = max(0.0, result.wall - sum(v for k, v in result.seconds.items() if k != "other"))
    return result


def _spread(session: _Session, result: Goodput, is_last: bool) -> None:
    """Add wall time, start-up, recovery and allocated resources of one session to ``result``."""
    result.wall += session.stop - session.start
    since, part = session.start, "start"
    for attempt in session.attempts:
        if attempt.first_time is None:  # without a step: its time is part of the next attempt's recovery
            continue
        result.seconds[part] += max(0.0, attempt.first_time - since)
        since, part = (attempt.kept or {"time": attempt.first_time})["time"], "recovery"
    last = session.attempts[-1] if session.attempts else None
    if not is_last and last is not None and last.lines and last.kept is not last.lines[-1]:
        # Steps that a later start ran again were lost, up to the end of this session.
        result.seconds["recovery"] += max(0.0, session.stop - since)
    edges = [session.start, *(a.begun for a in session.attempts[1:]), session.stop]
    for attempt, start, stop in zip(session.attempts, edges[:-1], edges[1:], strict=False):
        result.on_cluster = attempt.on_cluster
        result.gpu_seconds += max(0.0, stop - start) * attempt.gpus
        result.cpu_seconds += max(0.0, stop - start) * attempt.cpus


@dataclass
class _Attempt:
    number: int
    begun: float
    first_step: int
    on_cluster: bool
    gpus: float
    cpus: float
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    kept: Mapping[str, Any] | None = None  # its last line whose steps were not run again

    @property
    def first_time(self) -> float | None:
        """Start time of its first step; None if there was no step."""
        return self.lines[0]["first_time"] if self.lines else None

    def keep_up_to(self, step: int | None) -> None:
        """Set :attr:`kept`; steps from ``step`` on were run again by another attempt."""
        lines = [line for line in self.lines if step is None or line["step"] <= step]
        self.kept = lines[-1] if lines else None


@dataclass
class _Session:
    """One start of the command."""

    start: float
    stop: float
    attempts: list[_Attempt] = field(default_factory=list)


def _sessions(lines: Iterable[Mapping[str, Any]]) -> list[_Session]:
    sessions: list[_Session] = []
    for line in lines:
        event, now = line["event"], line["time"]
        if event == RUN or not sessions:
            sessions.append(_Session(now, now))
        session = sessions[-1]
        session.stop = max(session.stop, now)
        if event == BEGIN:
            held = (line["on_cluster"], line["gpus"], line["cpus"])
            session.attempts.append(_Attempt(line["attempt"], now, line["step"], *held))
        elif event == STEPS and session.attempts and session.attempts[-1].number == line["attempt"]:
            session.attempts[-1].lines.append(line)
    return sessions


def price_of(
    totals: Goodput, costs: TeacherCosts | None, prices: Prices, shared: Iterable[str] = (), inline: Iterable[str] = ()
) -> float | None:
    """Return the price of a run: workers, decoding, and the replicas of its teachers; None if unknown.

    Args:
        totals: of the run.
        costs: of the teachers.
        prices: of GPUs and CPUs.
        shared: teachers whose pool serves other runs too; only their work for this run counts.
        inline: teachers inside the workers, which use the workers' GPUs and CPUs.
    """
    parts = [TeacherCost(gpu_seconds=totals.gpu_seconds, cpu_seconds=totals.cpu_seconds)]
    priced = [prices.of(part) for part in [*parts, *held_by_replicas(costs, shared, inline)]]
    return None if any(part is None for part in priced) else sum(part for part in priced if part is not None)


def held_by_replicas(
    costs: TeacherCosts | None, shared: Iterable[str] = (), inline: Iterable[str] = ()
) -> Iterator[TeacherCost]:
    """Yield the GPU- and CPU-seconds that were allocated to each teacher's replicas, used or idle.

    Args:
        costs, shared, inline: see :func:`price_of`.
    """
    for name, cost in (costs.teachers if costs else {}).items():
        if name in set(inline) or not cost.seconds:
            continue
        grown = 1.0 if name in set(shared) else cost.held_seconds / cost.seconds
        yield TeacherCost(gpu_seconds=cost.gpu_seconds * grown, cpu_seconds=cost.cpu_seconds * grown)
