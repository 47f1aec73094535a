"""``trial_NNNN/trial.json``: parameters and result of a trial. A sweep continues from these folders alone."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from radioplat.errors import RadioplatError
from radioplat.tracking.results import write_atomic

FILE, REPORTS = "trial.json", "told.jsonl"


class State(str, Enum):
    """State of a trial."""

    running = "running"  # also after a sweep that was interrupted; the trial continues
    done = "done"
    stopped = "stopped"  # by the scheduler
    failed = "failed"


@dataclass
class TrialRecord:
    """One trial.

    Attributes:
        values: parameters by path; with PBT the current ones.
        metrics: objectives, after the end.
        step, steps: last step and number of steps; 0 if the task has none.
        seconds: wall-clock time of all starts, each until its last report.
        teacher_seconds: time of the teachers' forward passes for its training.
        money: cost by the spec's prices; None without prices.
        clones: with PBT: number of each trial whose weights were copied, and the step of these weights.
        cloned_from: the last of these checkpoints.
        reason: why it failed, or which trial's result was copied.
        owner: name of the sweep's start and Ray's name of the trial that uses the folder; of trials of one pass, which
            Ray runs as one, also the number.
    """

    number: int
    values: dict[str, Any]
    state: State = State.running
    metrics: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    step: int = 0
    steps: int = 0
    seconds: float = 0.0
    starts: int = 0
    teacher_seconds: float = 0.0
    money: float | None = None
    student: str = ""
    clones: list[list[int]] = field(default_factory=list)
    cloned_from: str = ""
    reason: str = ""
    owner: str = ""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"trial_{self.number:04d}"

    def write(self, home: Path) -> None:
        """Save it below ``home``, atomically."""
        (home / self.name).mkdir(parents=True, exist_ok=True)
        write_atomic(home / self.name / FILE, json.dumps(asdict(self), indent=1))

    def add_report(self, home: Path, step: int, value: float) -> None:
        """Save the value reported to the scheduler at ``step``, for schedulers of later starts."""
        with (home / self.name / REPORTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps([step, value]) + "\n")

    def reports(self, home: Path) -> list[tuple[int, float]]:
        """Return the reported (step, value), by step; the last value of a step that was repeated."""
        values: dict[int, float] = {}
        with contextlib.suppress(OSError):
            for line in (home / self.name / REPORTS).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError):  # cut off by a kill
                    step, value = json.loads(line)
                    values[step] = value
        return sorted(values.items())


def read_trials(home: Path) -> list[TrialRecord]:
    """Read all trials below ``home``, by number.

    Raises:
        RadioplatError: a file cannot be read.
    """
    records = []
    for path in sorted(home.glob(f"trial_[0-9]*/{FILE}")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            records.append(TrialRecord(**content | {"state": State(content["state"])}))
        except (ValueError, TypeError, KeyError) as error:
            hint = "Move the folder away; the trial is then run again."
            raise RadioplatError(f"cannot be read: {error}", where=str(path), hint=hint) from None
    return records


def claim(home: Path, values: dict[str, Any], owner: str, number: int | None = None) -> TrialRecord:
    """Return the record of the trial that ``owner`` runs: its own, an interrupted one with equal values, or a new one.

    A new one with the values of a finished trial copies its result.

    Args:
        owner: as the record has it, another for each trial of one pass; trials of other starts no longer run.
        number: of a trial whose number is known before it starts.
    """
    start, known = owner.partition("/")[0], read_trials(home)
    same = [r for r in known if r.values == values]
    interrupted = [r for r in same if r.state is State.running and r.owner.partition("/")[0] != start]
    candidates = [r for r in known if r.owner == owner]  # first: PBT gives a trial the number of the one it clones
    candidates = candidates or (interrupted if number is None else [r for r in known if r.number == number])
    record = candidates[0] if candidates else TrialRecord(_new_folder(home) if number is None else number, values)
    if not candidates and number is None and (done := next((r for r in same if r.state is State.done), None)):
        record.state, record.reason = State.done, f"same values as {done.name}"
        record.metrics, record.loss, record.student = done.metrics, done.loss, done.student
    record.owner = owner
    record.write(home)
    return record


def _new_folder(home: Path) -> int:
    """Create the next folder and return its number; trials that start at the same time get different ones."""
    taken = [int(path.name[6:]) for path in home.glob("trial_[0-9]*")]
    number = max(taken, default=-1) + 1
    while True:
        try:
            (home / f"trial_{number:04d}").mkdir(parents=True)
            return number
        except FileExistsError:
            number += 1
