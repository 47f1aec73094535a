"""``pipeline.json``: the state, fingerprint, result, time and cost of each node; a rerun continues from it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from radioplat.errors import RadioplatError
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tracking.record_versions import newer_record, read_versions
from radioplat.tracking.results import write_atomic

FILE, SCHEMA = "pipeline.json", 1


class State(str, Enum):
    """State of a node."""

    waiting = "waiting"  # for nodes that it needs, or for resources
    running = "running"  # also after a pipeline that was killed; the node continues
    done = "done"
    stopped = "stopped"  # by SIGTERM, after a checkpoint; the node continues
    failed = "failed"
    blocked = "blocked"  # a node that it needs has failed


@dataclass
class NodeEntry:
    """One node.

    Attributes:
        fingerprint: hash of the fields that its result depends on, and of the results of the nodes that it needs.
        starts: numbers of the starts of the pipeline in which it ran.
        outcome: None until it is done.
        files: sha256 of each file of its result, by path.
        seconds: time of all its starts.
        step, steps: last step and number of steps of its training; 0 without one.
        gpu_seconds, cpu_seconds: allocated to its workers, and once it is done to its teachers' actors.
        price: by the prices in its spec; None without prices.
        reason: why it failed.
    """

    name: str
    task: str
    needs: list[str] = field(default_factory=list)
    fingerprint: str = ""
    state: State = State.waiting
    starts: list[int] = field(default_factory=list)
    outcome: Outcome | None = None
    files: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    step: int = 0
    steps: int = 0
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    price: float | None = None
    reason: str = ""

    @property
    def progress(self) -> float:
        """Share of the node that is done; of a running one by its steps."""
        if self.state is State.done:
            return 1.0
        return self.step / self.steps if self.steps else 0.0


@dataclass
class Start:
    """One start of the command: its number from 1, when it began (seconds since 1970), and its process."""

    number: int
    began: float
    host: str
    pid: int


class Record:
    """The content of ``pipeline.json``; call :meth:`write` after each change.

    Args:
        home: folder of the file; it is read if it exists.

    Raises:
        NewerRecord: a newer version wrote it.
        RadioplatError: it exists and cannot be read.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self.entries: dict[str, NodeEntry] = {}
        self.starts: list[Start] = []
        if not self.path.exists():
            return
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["schema"] > SCHEMA:
                wrote = read_versions(home).radioplat
                raise newer_record(str(self.path), "its content", content["schema"], SCHEMA, wrote)
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']}")
            self.starts = [Start(**start) for start in content["starts"]]
            for node in content["nodes"]:
                outcome = node.pop("outcome")
                made = {"state": State(node["state"]), "outcome": Outcome(**outcome) if outcome else None}
                self.entries[node["name"]] = NodeEntry(**node | made)
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "Move the folder away to start the pipeline again."
            raise RadioplatError(f"cannot be read: {error}", where=str(self.path), hint=hint) from None

    def begin(self) -> int:
        """Add a start of the command, and return its number."""
        number = len(self.starts) + 1
        self.starts.append(Start(number, time.time(), os.uname().nodename, os.getpid()))
        return number

    @property
    def progress(self) -> float:
        """Share of the whole that is done: the mean over the nodes."""
        return sum(entry.progress for entry in self.entries.values()) / max(1, len(self.entries))

    def totals(self) -> dict[str, float]:
        """Return the seconds, GPU-seconds, CPU-seconds and, with prices, the price of all nodes together."""
        entries = self.entries.values()
        totals = {name: sum(getattr(e, name) for e in entries) for name in ("seconds", "gpu_seconds", "cpu_seconds")}
        prices = [entry.price for entry in entries if entry.price is not None]
        return totals | ({"price": sum(prices)} if prices else {})

    def write(self) -> None:
        """Write everything, atomically."""
        nodes: list[dict[str, Any]] = [asdict(entry) for entry in self.entries.values()]
        starts = [asdict(start) for start in self.starts]
        head = {"schema": SCHEMA, "progress": self.progress, "totals": self.totals(), "starts": starts}
        write_atomic(self.path, json.dumps(head | {"nodes": nodes}, indent=1))
