"""Where a benchmark of several parts keeps what they leave."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def kept_or_scratch(given: Path | None, name: str) -> Iterator[Path]:
    """An absolute folder: the user's, made where there is none, or one called after ``name`` that goes again."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix=name) as scratch:
        yield Path(scratch)
