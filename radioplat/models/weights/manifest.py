"""``manifest.json``: SHA-256 of each file of a run's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radioplat.common.hashing import file_hash
from radioplat.errors import WeightsError

MANIFEST = "manifest.json"


def sums_in(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the SHA-256 (hex) that ``manifest`` lists, by file name."""
    return {name: digest for name, digest in manifest.items() if isinstance(digest, str) and len(digest) == 64}


def require_unchanged(path: str | Path, names: tuple[str, ...], where: str = "") -> None:
    """Compare the model files of a checkpoint with the manifest in the same folder, if there is one.

    Args:
        path: the checkpoint folder, or one file of it.
        names: the files to compare in a folder; those that are missing or not listed are ignored.
        where: the spec field of the checkpoint, for the message.

    Raises:
        WeightsError: a file's hash differs from the manifest, or the manifest cannot be read.
    """
    path = Path(path)
    folder, names = (path.parent, (path.name,)) if path.is_file() else (path, names)
    if not (folder / MANIFEST).is_file():
        return
    hint = "The checkpoint is damaged or was edited: use another one, or copy it again."
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sums = sums_in(manifest) if isinstance(manifest, dict) else {}
        changed = [n for n in names if n in sums and (folder / n).is_file() and file_hash(folder / n) != sums[n]]
    except (OSError, ValueError) as error:
        raise WeightsError(f"{folder / MANIFEST} cannot be read: {error}", where=where, hint=hint) from None
    if changed:
        message = f"{folder / changed[0]} is not the file that was written: its SHA-256 differs from {MANIFEST}"
        raise WeightsError(message, where=where, hint=hint)
