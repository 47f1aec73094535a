"""Versions of TensorRT as a spec writes them."""

from __future__ import annotations

# TensorRT 11 removed calibrators, calibration caches and the builder's precision flags.
FIRST_WITHOUT_CACHE = 11


def parse_version(text: str) -> tuple[int, int, int] | None:
    """``8.6.1`` as numbers, what is left out being 0; None for what is no version."""
    parts = text.strip().split(".")
    if not 1 <= len(parts) <= 4 or not all(part.isdecimal() for part in parts):
        return None
    major, minor, patch, *_ = [int(part) for part in parts] + [0, 0]
    return major, minor, patch
