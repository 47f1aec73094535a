"""Answers of one model to all probes, as a small ``.npz``: what is left of its embeddings when they are gone.

Arrays are ``<figure>.right`` and ``<figure>.given``, uint16 ``[queries, classes]``, and ``<figure>.chance``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.judges.embeddings import UnfitFile
from benchmarks.judges.probes import Hits

_PARTS = ("right", "given", "chance")


def write_answers(path: Path, answers: dict[str, Hits]) -> None:
    """Write the answers by figure; the file appears whole or not at all."""
    arrays = {}
    for figure, hits in answers.items():
        arrays |= {f"{figure}.right": hits.right.astype(np.uint16), f"{figure}.given": hits.given.astype(np.uint16)}
        arrays[f"{figure}.chance"] = np.array(hits.chance)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def read_answers(path: Path) -> dict[str, Hits] | None:
    """Return the answers by figure; None where the file holds embeddings or cannot be read.

    Raises:
        UnfitFile: an array is missing.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if not any(name.endswith(".right") for name in file.files):
                return None
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError):
        return None
    found = {}
    for figure in sorted({name.rpartition(".")[0] for name in arrays}):
        missing = [part for part in _PARTS if f"{figure}.{part}" not in arrays]
        if missing:
            raise UnfitFile(f"{path}: {figure}.{missing[0]} is missing")
        right, given, chance = (arrays[f"{figure}.{part}"].astype(np.float64) for part in _PARTS)
        found[figure] = Hits(right, given, float(chance))
    return found
