"""Folders of this user alone, below a folder where everybody may create files, such as ``/tmp``.

Everybody can compute their names, and create them first: as a link, or with links in them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create ``folder`` with mode 0700, or check that it is private already.

    Raises:
        OSError: it cannot be created, or it is not private.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    require_private(folder)


def require_private(folder: Path) -> None:
    """Check that nobody else can put files into ``folder``.

    Raises:
        OSError: it is missing, a link, of another user, or open to others.
    """
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")


def private_opener(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that is no link, for this user alone: an ``opener`` for :func:`open`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
