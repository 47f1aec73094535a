"""JSON lines files to which several processes append; any of them may be killed while it writes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append ``value`` and sync it to disk; the file and its folder are created if missing.

    An incomplete last line of a killed writer becomes a separate line.

    Raises:
        OSError: the file cannot be written.
    """
    line = json.dumps(value).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" + line if torn else line
        if os.write(descriptor, line) < len(line):  # a disk that is full takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read all lines that are JSON objects, oldest first; empty if there is no file. Incomplete lines are skipped."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    parsed = (parse_line(line) for line in lines)
    return [value for value in parsed if value is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse the JSON object in ``line``; None for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are both ValueErrors
        return None
    return value if isinstance(value, dict) else None
