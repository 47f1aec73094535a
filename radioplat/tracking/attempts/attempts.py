"""``attempts.jsonl``: when each start of a run's workers began and ended, with how many of them, and why it ended.

One JSON object a line, with the fields of :class:`AttemptEvent`. Rank 0 writes the ``start``; whoever learns the cause
(the controller of the worker group, or the driver) writes the ``end``.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from radioplat.tracking.json_lines import append_line, read_lines

NAME = "attempts.jsonl"
CAUSES = ("worker_killed", "node_lost", "drained", "resized", "stopped", "hang", "oom", "storage", "error",
          "done", "unknown")  # fmt: skip
PLANNED = ("drained", "resized", "stopped", "done")  # nothing was lost
LOST = ("worker_killed", "node_lost", "drained", "hang", "oom")  # a process went, or a machine: no exception of ours
_DETAIL = 2000  # characters


@dataclass(frozen=True)
class AttemptEvent:
    """One line.

    Attributes:
        attempt: counts the starts of the worker group, from 1; the ledger's and the checkpoints' number.
        time: seconds since the epoch.
        world_size: training workers.
        from_step: optimizer steps that the checkpoint it began from had.
        event: ``start`` or ``end``.
        cause: one of :data:`CAUSES` for an end, empty for a start.
        detail: for people.
    """

    attempt: int
    time: float
    world_size: int
    from_step: int
    event: str
    cause: str = ""
    detail: str = ""


class Attempts:
    """The file of one task folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / NAME

    def read(self) -> list[AttemptEvent]:
        """Every event, oldest first; a line that a killed process left half-written is left out."""
        events = []
        for fields in read_lines(self.path):
            with contextlib.suppress(TypeError):
                events.append(AttemptEvent(**fields))
        return events

    @property
    def last(self) -> int:
        """Number of the newest attempt, 0 before the first."""
        return max((event.attempt for event in self.read()), default=0)

    def unended(self) -> AttemptEvent | None:
        """The newest start, if nobody has said how it ended."""
        events = self.read()
        return events[-1] if events and events[-1].event == "start" else None

    def start(self, attempt: int, world_size: int, from_step: int, detail: str = "") -> AttemptEvent | None:
        """Say that an attempt begins.

        Returns:
            The end of the one before, if any.
        """
        self.end("unknown", "nothing was heard of its end")
        before = self.read()
        event = AttemptEvent(attempt, time.time(), world_size, from_step, "start", "", detail[:_DETAIL])
        append_line(self.path, asdict(event))
        return before[-1] if before else None

    def end(self, cause: str, detail: str = "") -> None:
        """Say why the attempt that has no end yet ended; nothing is written where there is none.

        Raises:
            ValueError: ``cause`` is none of :data:`CAUSES`.
        """
        if cause not in CAUSES:
            raise ValueError(f"{cause!r} is none of {', '.join(CAUSES)}")
        begun = self.unended()
        if begun is not None:
            end = {"time": time.time(), "event": "end", "cause": cause, "detail": detail[:_DETAIL]}
            append_line(self.path, asdict(begun) | end)
