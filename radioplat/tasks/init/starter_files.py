"""The place of the files that ``radioplat init`` writes: the checkout that runs, or the installed package."""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("specs", "tune_spaces", "jobs", "clusters")


def starter_root() -> Path:
    """Return the folder that contains :data:`FOLDERS`."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "starter"  # setup.py copies them there when a wheel is built
    return installed if installed.is_dir() else package.parent
