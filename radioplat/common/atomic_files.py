"""Write files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_aside(path: str | os.PathLike[str], sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; rename it to ``path`` at the end of the block.

    If the block raises, the temporary file is removed. A process that is killed inside the block leaves the old file
    unchanged.

    Args:
        sync: wait until the content is on disk, so that it is there after a loss of power, too; see
            :func:`sync_folder` for the name.
    """
    path = Path(path)
    aside = aside_of(path)
    try:
        yield aside
        if sync:
            with open(aside, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def aside_of(path: Path) -> Path:
    """Return a hidden path beside ``path`` that no other writer has, on any machine that shares the folder."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Wait until the names of the files in a folder are on disk, where the file system can tell."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems can sync only files
            raise
    finally:
        os.close(descriptor)
