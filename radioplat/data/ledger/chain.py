"""``windows.jsonl``: the steps of which each sample was compared with the order, and in which file their rows are.

One JSON object a line, only appended. A line of kind ``window`` says that a file contains exactly the order's samples
of some steps; ``reopened`` takes back the windows that end after a step, since an attempt resumed before their end.
Each line has the hash of its own content and of the line before, so that a changed or removed line shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from radioplat.tracking.json_lines import append_line, read_lines
from radioplat.tracking.record_versions import newer_record, read_versions

NAME = "windows.jsonl"
SCHEMA = 1
WINDOW, REOPENED = "window", "reopened"


@dataclass(frozen=True)
class Window:
    """The rows of some steps of one attempt, in one file: exactly the samples that the order has there.

    Attributes:
        attempt: the one that ran these steps.
        start: first step.
        stop: last step plus 1.
        order: hash of the order.
        file: name of the file.
        size: of the file, in bytes.
        rows: in the file, sorted by position.
        blocks: digest of each row group of the file, see :func:`radioplat.data.ledger.files.digest`.
    """

    attempt: int
    start: int
    stop: int
    order: str
    file: str
    size: int
    rows: int
    blocks: list[str]

    @property
    def steps(self) -> tuple[int, int]:
        """First step, and last step plus 1."""
        return self.start, self.stop


_KINDS = {"int": int, "str": str, "list[str]": list}


class Chain:
    """The lines of one ledger.

    Attributes:
        windows: those that stand and whose file is there, by ascending step.
        missing: those that stand and whose file is not there.
        broken: why the lines cannot be trusted, and there are no windows; empty if each follows the one before.
        hashes: of the lines, in order.
    """

    def __init__(self, directory: Path) -> None:
        """Read ``windows.jsonl`` in ``directory``; without the file, there are no windows.

        Raises:
            NewerRecord: a newer version wrote it.
        """
        self.path = directory / NAME
        self.windows: list[Window] = []
        self.missing: list[Window] = []
        self.broken = ""
        self.hashes: list[str] = []
        for number, line in enumerate(read_lines(self.path), start=1):
            schema = line.get("schema")
            if isinstance(schema, int) and schema > SCHEMA:
                wrote = read_versions(directory).radioplat
                raise newer_record(str(self.path), f"line {number}", schema, SCHEMA, wrote)
            if line.get("hash") != _hash(line) or line.get("previous") != self._last or not self._take(line):
                self.broken = f"line {number} was changed, or the line before it was removed"
                self.windows = []
                return
        self.missing = [window for window in self.windows if not (directory / window.file).exists()]
        self.windows = [window for window in self.windows if window not in self.missing]

    @property
    def files(self) -> set[str]:
        """Names of the files of windows that stand."""
        return {window.file for window in self.windows}

    def add(self, window: Window) -> None:
        """Append a window.

        Raises:
            OSError: the line cannot be written.
        """
        self._append({"kind": WINDOW, **asdict(window)})

    def reopen(self, step: int) -> None:
        """Take back all windows that end after ``step``.

        Raises:
            OSError: the line cannot be written.
        """
        self._append({"kind": REOPENED, "step": step})

    @property
    def _last(self) -> str:
        return self.hashes[-1] if self.hashes else ""

    def _append(self, line: dict[str, Any]) -> None:
        line = {"schema": SCHEMA, **line, "previous": self._last}
        line["hash"] = _hash(line)
        append_line(self.path, line)
        self._take(line)

    def _take(self, line: Mapping[str, Any]) -> bool:
        """Add a line that is in the file; return False if its fields are not those of a line."""
        if line.get("kind") == WINDOW:
            values = {each.name: line.get(each.name) for each in fields(Window)}
            if not all(type(values[each.name]) is _KINDS[str(each.type)] for each in fields(Window)):
                return False
            self.windows.append(Window(**values))  # type: ignore[arg-type]
            self.windows.sort(key=lambda window: window.start)
        elif line.get("kind") == REOPENED and isinstance(step := line.get("step"), int):
            self.windows = [window for window in self.windows if window.stop <= step]
        else:
            return False
        self.hashes.append(str(line["hash"]))
        return True


def _hash(line: Mapping[str, Any]) -> str:
    own = {name: value for name, value in line.items() if name != "hash"}
    text = json.dumps(own, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
