"""Hashes of files."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def file_hash(path: Path) -> str:
    """Return the sha256 (hex) of the file at ``path``; cached per process until size or modification time change."""
    state = path.stat()
    return _hashed(str(path.resolve()), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=256)
def _hashed(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
