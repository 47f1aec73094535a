"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes that name when the block ends well, and is removed when it fails.

    A process that dies inside the block leaves what was there before.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
