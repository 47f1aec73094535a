"""``windows.jsonl``: which steps of the ledger were compared with the order as they were written, and with what result.

One JSON object a line, only appended. A line of kind ``window`` describes steps whose rows were compared and moved into
one file; ``reopened`` takes back the windows that end after a step, since an attempt resumed before their end. Each
line has the hash of its own content and of the line before, so that a changed or removed line shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from radioplat.tracking.json_lines import append_line, read_lines
from radioplat.tracking.record_versions import newer_record, read_versions

NAME = "windows.jsonl"
SCHEMA = 1
WINDOW, REOPENED = "window", "reopened"


@dataclass(frozen=True)
class Window:
    """The rows of some steps of one attempt, in one file, and their comparison with the order.

    Attributes:
        attempt: the one that ran these steps.
        start: first step.
        stop: last step plus 1.
        order: hash of the order that they were compared with.
        file: name of the file.
        rows: in the file.
        blocks: digest of each row group of the file, see :func:`radioplat.data.ledger.files.digest`.
        missing: expected samples without a row.
        repeated: rows beyond the first of an expected sample.
        misplaced: rows that differ from the order.
        examples: descriptions of the first differences.
        gaps: files that could not be read, with the reason, by name; they are still there.
        sources: files that are removed, since their rows are in ``file`` or in ``replayed_file``.
        replayed: rows of the sources that are of steps that were run again or abandoned.
        replayed_file: name of the file with these rows; empty if there are none.
    """

    attempt: int
    start: int
    stop: int
    order: str
    file: str
    rows: int
    blocks: list[str]
    missing: int = 0
    repeated: int = 0
    misplaced: int = 0
    examples: list[str] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    replayed: int = 0
    replayed_file: str = ""


class Chain:
    """The lines of one ledger.

    Attributes:
        windows: those that stand, by ascending step.
        reopened: file names of windows that were taken back.
        replayed: rows of steps that were run again or abandoned, by the name of the file that contains them.
        sources: files that the last line moved; a killed process may have left them.
        broken: why the lines cannot be trusted; empty if each follows the one before.
    """

    def __init__(self, directory: Path) -> None:
        """Read ``windows.jsonl`` in ``directory``; without the file, there are no windows.

        Raises:
            NewerRecord: a newer version wrote it.
        """
        self._path = directory / NAME
        self.windows: list[Window] = []
        self.reopened: set[str] = set()
        self.replayed: dict[str, int] = {}
        self.sources: set[str] = set()
        self.broken = ""
        self._last = ""
        for number, line in enumerate(read_lines(self._path), start=1):
            self._check(number, line)
            self._take(line)

    @property
    def stop(self) -> int:
        """The step up to which rows are in windows."""
        return self.windows[-1].stop if self.windows else 0

    @property
    def files(self) -> set[str]:
        """Names of the files of windows that stand."""
        return {window.file for window in self.windows}

    def add(self, window: Window) -> None:
        """Append a window."""
        self._append({"kind": WINDOW, **asdict(window)})

    def reopen(self, step: int) -> None:
        """Take back all windows that end after ``step``."""
        self._append({"kind": REOPENED, "step": step})

    def _append(self, line: dict[str, Any]) -> None:
        line = {"schema": SCHEMA, **line, "previous": self._last}
        line["hash"] = _hash(line)
        append_line(self._path, line)
        self._take(line)

    def _check(self, number: int, line: Mapping[str, Any]) -> None:
        schema = line.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            wrote = read_versions(self._path.parent).radioplat
            raise newer_record(str(self._path), f"line {number}", schema, SCHEMA, wrote)
        if not self.broken and (line.get("hash") != _hash(line) or line.get("previous") != self._last):
            self.broken = f"line {number} was changed, or the line before it was removed"

    def _take(self, line: Mapping[str, Any]) -> None:
        """Add a line that is in the file."""
        self._last = str(line.get("hash"))
        kind = line.get("kind")
        self.sources = set(line.get("sources", ()))
        if kind == WINDOW:
            known = {each.name for each in fields(Window)}
            try:
                window = Window(**{name: value for name, value in line.items() if name in known})
            except TypeError:
                self.broken = self.broken or "a line lacks fields"
                return
            self.windows.append(window)
            if window.replayed_file:
                self.replayed[window.replayed_file] = window.replayed
        elif kind == REOPENED:
            step = int(line["step"])
            self.reopened.update(window.file for window in self.windows if window.stop > step)
            self.windows = [window for window in self.windows if window.stop <= step]


def _hash(line: Mapping[str, Any]) -> str:
    own = {name: value for name, value in line.items() if name != "hash"}
    text = json.dumps(own, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
