"""Where the two runs are, read from the files that they write and from ``ps``."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.demonstration.runs import ALONE, DISTURBED, KILLS, Options, student
from benchmarks.judges.killer import processes
from benchmarks.judges.ledger import judged
from radioplat.tracking.attempts.attempts import AttemptEvent, Attempts
from radioplat.tracking.attempts.goodput import STEPS, read_accounts
from radioplat.tracking.report.curves import Curve, curves_from_status

_LEDGER_S = 5.0  # between two looks at the ledgers


@dataclass(frozen=True)
class Kill:
    """A process that was killed: when, by the clock of the epoch, and its kind, id and title."""

    time: float
    kind: str
    pid: int
    title: str

    @property
    def program(self) -> str:
        """The first word of the title, without folders."""
        return self.title.split(maxsplit=1)[0].rpartition("/")[-1] if self.title else ""


@dataclass
class Progress:
    """What can be seen of the runs now.

    Attributes:
        losses: of each run and student, by step.
        kills: so far.
        alive: processes by kind, of the run that is disturbed.
        attempts: starts and ends of the group of workers.
        ledgers: samples that are missing and repeated, up to the last whole window of each student's ledger.
    """

    home: Path
    options: Options
    losses: dict[str, dict[str, Curve]] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    alive: Counter[str] = field(default_factory=Counter)
    attempts: list[AttemptEvent] = field(default_factory=list)
    ledgers: dict[str, dict[str, Any]] = field(default_factory=dict)
    _ledgers_at: float = 0.0

    def look(self, below: int | None = None) -> None:
        """Read everything again.

        Args:
            below: process id of the run; None if it does not run.
        """
        for run in (ALONE, DISTURBED):
            self.losses[run] = {
                name: curves_from_status(student(self.home, run, name) / "status.json").get("loss", [])
                for name in self.options.names
            }
        self.kills = read_kills(self.home)
        self.alive = Counter(kind for _, kind, _ in processes(below)) if below else Counter()
        self.attempts = Attempts(self.home / DISTURBED / "distill").read()
        if time.monotonic() - self._ledgers_at > _LEDGER_S:
            self.look_at_ledgers()

    def look_at_ledgers(self) -> None:
        """Count the samples in the ledgers; a file that is being written is read the next time."""
        for name in self.options.names:
            folder = student(self.home, DISTURBED, name) / "ledger"
            try:
                windows = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
                stop = max((w["stop"] for w in windows if w["kind"] == "window"), default=0)
                each = self.options.samples // self.options.steps
                self.ledgers[name] = judged(folder, stop * each)
            except (OSError, ValueError, KeyError):
                continue
        self._ledgers_at = time.monotonic()

    def step(self, run: str, name: str) -> int:
        """Return the last step of a student."""
        curve = self.losses.get(run, {}).get(name)
        return curve[-1][0] if curve else 0

    @property
    def world(self) -> int:
        """Workers of the newest group."""
        return self.attempts[-1].world_size if self.attempts else 0


def read_kills(home: Path) -> list[Kill]:
    """Return the killer's log."""
    path = home / KILLS
    return [Kill(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def cost_of_kills(home: Path, kills: list[Kill]) -> list[tuple[Kill, int, float]]:
    """Return of each kill the next step that was due, and the seconds until that step was taken.

    Kills that came meanwhile have their part in it, too. A kill after the last step costs nothing and is left out.
    """
    lines = [line for line in read_accounts(home / DISTURBED / "distill") if line["event"] == STEPS]
    costs = []
    for kill in kills:
        due = max((line["step"] for line in lines if line["time"] <= kill.time), default=0) + 1
        later = [line["time"] for line in lines if line["time"] > kill.time and line["step"] >= due]
        if later:
            costs.append((kill, due, min(later) - kill.time))
    return costs
