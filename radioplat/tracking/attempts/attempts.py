"""``attempts.jsonl``: start, end, size and cause of the end of each attempt, that is each start of the worker group.

One JSON object a line, with the fields of :class:`AttemptEvent`. Rank 0 writes the ``start``; the controller of the
worker group or the driver writes the ``end``.
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
PLANNED = ("drained", "resized", "stopped", "done")  # ends without lost work
LOST = ("worker_killed", "node_lost", "drained", "hang", "oom")  # ends by the loss of a process or a machine
_DETAIL = 2000  # characters


@dataclass(frozen=True)
class AttemptEvent:
    """One line.

    Attributes:
        attempt: number of the start of the worker group, from 1; also used in the ledger and in checkpoints.
        time: seconds since the epoch.
        world_size: training workers.
        from_step: optimizer steps of the checkpoint that it resumed from.
        event: ``start`` or ``end``.
        cause: one of :data:`CAUSES` for an end, empty for a start.
        detail: explanation for the user.
    """

    attempt: int
    time: float
    world_size: int
    from_step: int
    event: str
    cause: str = ""
    detail: str = ""


class Attempts:
    """``attempts.jsonl`` of one task folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / NAME

    def read(self) -> list[AttemptEvent]:
        """Read all events, oldest first; an incomplete line of a killed process is skipped."""
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
        """Return the newest start if its end was not recorded, else None."""
        events = self.read()
        return events[-1] if events and events[-1].event == "start" else None

    def start(self, attempt: int, world_size: int, from_step: int) -> AttemptEvent | None:
        """Record that an attempt begins.

        Returns:
            The end of the previous attempt, if any.
        """
        self.end("unknown", "nothing was heard of its end")
        before = self.read()
        event = AttemptEvent(attempt, time.time(), world_size, from_step, "start")
        append_line(self.path, asdict(event))
        return before[-1] if before else None

    def end(self, cause: str, detail: str = "") -> None:
        """Record why the current attempt ended; nothing is written if there is none.

        Raises:
            ValueError: ``cause`` is none of :data:`CAUSES`.
        """
        if cause not in CAUSES:
            raise ValueError(f"{cause!r} is none of {', '.join(CAUSES)}")
        begun = self.unended()
        if begun is not None:
            end = {"time": time.time(), "event": "end", "cause": cause, "detail": detail[:_DETAIL]}
            append_line(self.path, asdict(begun) | end)
