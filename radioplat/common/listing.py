"""Format lists for messages."""

from __future__ import annotations

from collections.abc import Sequence


def first_few(items: Sequence[str], most: int) -> str:
    """Join at most ``most`` items by commas, and count the rest: ``a, b and 7 more``."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
