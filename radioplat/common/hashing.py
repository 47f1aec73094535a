"""Hashes of files."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def file_hash(path: Path) -> str:
    """sha256 (hex) of the file at ``path``; read once a process for each version of it."""
    found = path.stat()
    return _hashed(str(path.resolve()), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _hashed(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
