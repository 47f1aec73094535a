"""``compress.json``: what each stage was, how far it came and what it left; a rerun goes on from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from radioplat.errors import RadioplatError
from radioplat.tasks.compress.stages import Outcome
from radioplat.tracking.results import write_atomic

SCHEMA = 1


@dataclass
class Entry:
    """One stage, or one retry of it.

    Attributes:
        name: its folder: ``02_retrain``, ``02_retrain.relaxed1``.
        spec_hash: of the fields it depends on, and of all stages before it.
        milder: overrides of a retry.
        outcome: None until it is done.
        metrics: of the student it left, on the validation split; empty until they are taken.
        metrics_hash: of what they were measured on.
        seconds: of all starts, and of the measurement.
        kept: share of the starting student's metric; None where nothing was measured.
        passed: the verdict of the gate behind it; None where there is none.
    """

    name: str
    stage: str
    spec_hash: str
    milder: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_hash: str = ""
    seconds: float = 0.0
    measured_s: float = 0.0
    kept: float | None = None
    passed: bool | None = None


class Record:
    """The file, and what it says; :meth:`write` after each change.

    Args:
        path: of ``compress.json``; read where it is there.

    Raises:
        RadioplatError: it is there and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.order: list[str] = []  # of the entries that this start has come to
        if not path.exists():
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']}")
            for entry in found["stages"]:
                outcome = entry.pop("outcome")
                self.entries[entry["name"]] = Entry(**entry, outcome=Outcome(**outcome) if outcome else None)
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "Move the folder away to begin the chain anew."
            raise RadioplatError(f"cannot be read: {error}", where=str(path), hint=hint) from None

    def write(self, **facts: Any) -> None:
        """Everything, in one step: a reader sees the old file or the new one."""
        later = [name for name in self.entries if name not in self.order]
        stages = [asdict(self.entries[name]) for name in (*self.order, *later)]
        write_atomic(self.path, json.dumps({"schema": SCHEMA, **facts, "stages": stages}, indent=1))
