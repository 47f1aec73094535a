"""Arrays as long as the index, which may be longer than memory is large."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

IN_MEMORY_BYTES = 1 << 28


def scratch(length: int, dtype: np.dtype | type, folder: Path) -> np.ndarray:
    """``length`` zeros: in memory where they fit, else in a file of ``folder`` that vanishes with the array."""
    if length * np.dtype(dtype).itemsize <= IN_MEMORY_BYTES:
        return np.zeros(length, dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(length * np.dtype(dtype).itemsize)  # a hole: it reads as zeros
        return np.memmap(file, dtype, "r+", shape=(length,))
