"""The command ``init``: a folder with specs, search spaces, job scripts and cluster files to start from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from radioplat.errors import RadioplatError
from radioplat.tasks.init.starter_files import FOLDERS, starter_root

DEFAULT = "my_images"


@dataclass(frozen=True)
class Started:
    """Result of :func:`init`.

    Attributes:
        folder: the folder that was written.
        files: number of files in it.
        spec: the spec to begin with.
    """

    folder: Path
    files: int
    spec: Path


def init(folder: str | Path, name: str = DEFAULT) -> Started:
    """Write ``specs/``, ``tune_spaces/``, ``jobs/`` and ``clusters/`` into ``folder``.

    Args:
        folder: created if it is missing. Other files in it stay.
        name: the spec to begin with, a file of ``specs/`` without its ending.

    Raises:
        RadioplatError: there is no such spec, or a file or folder of these names is there already; nothing is written.
    """
    folder, root = Path(folder), starter_root()
    specs = [path for path in (root / "specs").rglob("*.yaml") if "\nnodes:" not in path.read_text(encoding="utf-8")]
    known = sorted(str(path.relative_to(root / "specs").with_suffix("")) for path in specs)  # not of a pipeline
    if name not in known:
        raise RadioplatError(f"there is no spec {name!r}", where="--spec", hint=f"One of {', '.join(known)}.")
    taken = [part for part in FOLDERS if (folder / part).exists()]
    if taken:
        hint = "Name another folder; nothing was written."
        raise RadioplatError(f"it contains {', '.join(taken)} already", where=str(folder), hint=hint)
    for part in FOLDERS:
        shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "images"))
    files = sum(path.is_file() for part in FOLDERS for path in (folder / part).rglob("*"))
    return Started(folder, files, folder / "specs" / f"{name}.yaml")
