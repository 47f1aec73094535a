"""``trial_NNNN/trial.json``: what a trial is and came to. The folders are all that a sweep that goes on needs."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from radioplat.errors import RadioplatError
from radioplat.tracking.results import write_atomic

FILE, TOLD = "trial.json", "told.jsonl"


class State(str, Enum):
    """How far a trial has come."""

    running = "running"  # or left so by a sweep that ended: it goes on
    done = "done"
    stopped = "stopped"  # by the scheduler
    failed = "failed"


@dataclass
class TrialRecord:
    """One trial.

    Attributes:
        values: of the fields that vary, by path; with PBT those that it has now.
        metrics: objectives, of a trial that is done.
        step, steps: that it has come to, and that it has in all; 0 where the task has none.
        seconds: of all starts, by the clock; what a start took after its last report is not known.
        teacher_seconds: of teachers' forwards for its training.
        money: at the spec's prices; None where there are none.
        clones: with PBT: whose weights it took over, and of which step.
        cloned_from: the last of these checkpoints.
        reason: why it failed, or whose outcome it has.
        owner: Ray's name of the trial that has the folder.
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
        """Of its folder."""
        return f"trial_{self.number:04d}"

    def write(self, home: Path) -> None:
        """Save it below ``home``, in one step."""
        (home / self.name).mkdir(parents=True, exist_ok=True)
        write_atomic(home / self.name / FILE, json.dumps(asdict(self), indent=1))

    def tell(self, home: Path, step: int, value: float) -> None:
        """Keep what the scheduler was told at ``step``, for those of later starts."""
        with (home / self.name / TOLD).open("a", encoding="utf-8") as file:
            file.write(json.dumps([step, value]) + "\n")

    def told(self, home: Path) -> list[tuple[int, float]]:
        """(step, value) by rising step; of one that was taken again the last."""
        found: dict[int, float] = {}
        with contextlib.suppress(OSError):
            for line in (home / self.name / TOLD).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError):  # torn by a kill
                    step, value = json.loads(line)
                    found[step] = value
        return sorted(found.items())


def read_trials(home: Path) -> list[TrialRecord]:
    """Every trial below ``home``, by number.

    Raises:
        RadioplatError: a file there is none of ours.
    """
    found = []
    for path in sorted(home.glob(f"trial_[0-9]*/{FILE}")):
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            found.append(TrialRecord(**{**said, "state": State(said["state"])}))
        except (ValueError, TypeError, KeyError) as error:
            hint = "Move the folder away; the trial is then run again."
            raise RadioplatError(f"cannot be read: {error}", where=str(path), hint=hint) from None
    return found


def claim(home: Path, values: dict[str, Any], owner: str, number: int | None = None) -> TrialRecord:
    """The record of the trial that ``owner`` runs: its own, one with the same values that was left, or a new one.

    A new one with the values of a trial that is done has done what that did.

    Args:
        owner: Ray's name of the trial, with the sweep's start in front: those of other starts are gone.
        number: of a trial whose number is known before it starts.
    """
    start, known = owner.partition("/")[0], read_trials(home)
    alike = [r for r in known if r.values == values]
    left = [r for r in alike if r.state is State.running and r.owner.partition("/")[0] != start]
    found = [r for r in known if r.owner == owner]  # first: PBT gives a trial the number of the one it clones
    found = found or (left if number is None else [r for r in known if r.number == number])
    record = found[0] if found else TrialRecord(_new_folder(home) if number is None else number, values)
    if not found and number is None and (same := [r for r in alike if r.state is State.done]):
        done = same[0]
        reason = f"same values as {done.name}"
        record = replace(
            record, state=State.done, reason=reason, metrics=done.metrics, loss=done.loss, student=done.student
        )
    record.owner = owner
    record.write(home)
    return record


def _new_folder(home: Path) -> int:
    """Make the next folder; two trials that begin at once get one each."""
    taken = [int(path.name[6:]) for path in home.glob("trial_[0-9]*")]
    number = max(taken, default=-1) + 1
    while True:
        try:
            (home / f"trial_{number:04d}").mkdir(parents=True)
            return number
        except FileExistsError:
            number += 1
