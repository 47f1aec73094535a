"""The record of a student of several whose training diverged: it ends alone, and later workers leave it out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from radioplat.common import terminal
from radioplat.design.run import Run
from radioplat.tracking.results import write_atomic
from radioplat.tracking.status import Status, StatusLog

FILE = "ended.json"


@dataclass(frozen=True)
class EndedStudent:
    """A student that ended.

    Attributes:
        step: up to which it was trained.
    """

    name: str
    step: int
    reason: str

    def write(self, run: Run, rank: int) -> None:
        """Write the record and a status line into the student's folder; rank 0 only.

        Args:
            run: of the student.
        """
        if rank:
            return
        write_atomic(run.folder / FILE, json.dumps({"lease": run.lease, **asdict(self)}) + "\n")
        line = f"student {self.name} ends: {self.reason}"
        with StatusLog(run.folder / "status.json") as status:
            status.write(line, Status.FAILURE, verbosity="ERROR")
        terminal.note(line)

    @classmethod
    def read(cls, folder: Path, lease: str = "") -> EndedStudent | None:
        """Return the record in a run's folder, which each start of the command removes; None if there is none.

        Args:
            lease: of the start in which it ended; default: any.
        """
        try:
            entry = json.loads((folder / FILE).read_text(encoding="utf-8"))
            same = entry.pop("lease") == lease or not lease
            return cls(**entry) if same else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
