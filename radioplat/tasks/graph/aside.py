"""Folders of results that are no longer current."""

from __future__ import annotations

from pathlib import Path


def moved_aside(folder: Path) -> Path:
    """Rename a node's folder: days of training are not deleted because a field changed."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.before{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside
