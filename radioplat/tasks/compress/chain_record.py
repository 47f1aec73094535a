"""``compress.json``: each stage's fields, progress and result; a rerun continues from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from radioplat.errors import RadioplatError
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tracking.record_versions import newer_record, read_versions
from radioplat.tracking.results import write_atomic

SCHEMA = 1


@dataclass
class Entry:
    """One stage, or one retry of it.

    Attributes:
        name: its folder: ``02_retrain``, ``02_retrain.relaxed1``.
        spec_hash: of the fields that its result depends on, and of all stages before it.
        milder: overrides of a retry.
        outcome: None until it is done.
        metrics: of its student, on the validation split; empty until they are measured.
        metrics_hash: of the settings that they were measured with.
        seconds: time of all attempts.
        measured_s: seconds that the measurement took.
        kept: share of the starting student's metric; None if it was not measured.
        passed: whether its gate let it pass; None if it has none.
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
    """The content of ``compress.json``; call :meth:`write` after each change.

    Args:
        path: of ``compress.json``; read if it exists.

    Raises:
        NewerRecord: a newer version wrote it.
        RadioplatError: it exists and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.order: list[str] = []  # names of the entries that this run has reached
        if not path.exists():
            return
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["schema"] > SCHEMA:
                wrote = read_versions(path.parent).radioplat
                raise newer_record(str(path), "its content", content["schema"], SCHEMA, wrote)
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']}")
            for entry in content["stages"]:
                outcome = entry.pop("outcome")
                self.entries[entry["name"]] = Entry(**entry, outcome=Outcome(**outcome) if outcome else None)
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "Move the folder away to start the chain again."
            raise RadioplatError(f"cannot be read: {error}", where=str(path), hint=hint) from None

    def write(self, **facts: Any) -> None:
        """Write all entries and ``facts`` atomically."""
        later = [name for name in self.entries if name not in self.order]
        stages = [asdict(self.entries[name]) for name in (*self.order, *later)]
        write_atomic(self.path, json.dumps({"schema": SCHEMA, **facts, "stages": stages}, indent=1))
