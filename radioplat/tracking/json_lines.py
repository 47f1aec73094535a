"""Files of one JSON object a line that several processes append to, any of which may be killed while it writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append ``value`` and put it on the disk; the file and its folder are made if missing.

    One write of whole lines: a tail that a killed writer left torn becomes a line of its own.

    Raises:
        OSError: it cannot be written.
    """
    line = json.dumps(value).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every line that is a JSON object, oldest first; empty if there is no file. A torn line is left out."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    parsed = (parse_line(line) for line in lines)
    return [value for value in parsed if value is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object in ``line``; None for anything else."""
    try:
        value = json.loads(line)
    except ValueError:  # UnicodeDecodeError and JSONDecodeError are both ValueErrors
        return None
    return value if isinstance(value, dict) else None
