"""A reader of TensorRT's calibration caches."""

from __future__ import annotations

import struct
from pathlib import Path


def read_cache(path: Path) -> tuple[str, dict[str, float]]:
    """The header and the scales by tensor; a tensor's name may contain ``": "``."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.rsplit(": ", 1) for line in lines if line.strip()]
    return first, {tensor: struct.unpack(">f", bytes.fromhex(bits))[0] for tensor, bits in pairs}
