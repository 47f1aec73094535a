"""Temporary arrays as long as the index, which may be larger than memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

IN_MEMORY_BYTES = 1 << 28


def scratch(length: int, dtype: np.dtype | type, folder: Path) -> np.ndarray:
    """Return ``length`` zeros, in memory up to :data:`IN_MEMORY_BYTES`, else in a temporary file in ``folder``."""
    if length * np.dtype(dtype).itemsize <= IN_MEMORY_BYTES:
        return np.zeros(length, dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(length * np.dtype(dtype).itemsize)  # a sparse file: it reads as zeros
        return np.memmap(file, dtype, "r+", shape=(length,))
