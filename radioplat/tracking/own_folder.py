"""Folders of temporary files by which the processes of one user on a machine tell each other something."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_own_folder(folder: Path) -> None:
    """Create a folder that this user alone may use, unless it exists.

    Raises:
        OSError: it cannot be created, or :func:`require_own_folder` refuses it.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    require_own_folder(folder)


def require_own_folder(folder: Path) -> None:
    """Check that nobody else can put files into a folder whose name everybody knows.

    Raises:
        OSError: it is missing, a link, of another user, or open to others.
    """
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")


def open_own(path: str | Path, flags: int) -> int:
    """Open a file for this user alone, and no link; an ``opener`` of :func:`open`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
