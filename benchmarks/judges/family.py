"""Are students of a family what their lone runs are, and how often did the teachers compute?

Imports nothing of the platform that it judges; reads checkpoints' safetensors and the lines that a hook in the teachers
wrote.

``python -m benchmarks.judges.family weights OURS THEIRS``: two checkpoint folders. Last line: ``difference``, the
largest absolute difference of any number in any tensor of student, heads, moments and averages (infinite if the tensors
are not the same ones), and ``numbers``, how many were compared.

``... forwards FILE --rows N``: lines ``NAME ROWS PROCESS IMAGES``. Last line, by name: forwards of N rows; how many of
them were of ``new`` images, and how many of images that had been computed before, ``again``; and the number of
processes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

FILES = ("student.safetensors", "heads.safetensors", "optimizer.safetensors", "ema.safetensors")


def main() -> None:
    """Look and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    weights = commands.add_parser("weights")
    weights.add_argument("ours", type=Path)
    weights.add_argument("theirs", type=Path)
    forwards = commands.add_parser("forwards")
    forwards.add_argument("file", type=Path)
    forwards.add_argument("--rows", type=int, required=True)
    given = parser.parse_args()
    found = compared(given.ours, given.theirs) if given.what == "weights" else counted(given.file, given.rows)
    print(json.dumps(found))


def compared(ours: Path, theirs: Path) -> dict[str, Any]:
    """Compare two checkpoints."""
    largest, numbers = 0.0, 0
    for name in FILES:
        if (ours / name).exists() != (theirs / name).exists():
            return {"difference": math.inf, "numbers": numbers, "file": name}
        if not (ours / name).exists():
            continue
        with safe_open(ours / name, "np") as mine, safe_open(theirs / name, "np") as other:
            if set(mine.keys()) != set(other.keys()):
                return {"difference": math.inf, "numbers": numbers, "file": name}
            for key in mine.keys():  # noqa: SIM118  it is no dict
                a, b = (np.asarray(file.get_tensor(key), np.float64) for file in (mine, other))
                if a.shape != b.shape:
                    return {"difference": math.inf, "numbers": numbers, "file": name, "tensor": key}
                largest, numbers = max(largest, float(np.abs(a - b).max(initial=0))), numbers + a.size
    return {"difference": largest, "numbers": numbers}


def counted(file: Path, rows: int) -> dict[str, Any]:
    """Count the forwards of a batch of ``rows``."""
    forwards: Counter[str] = Counter()
    images: dict[str, set[str]] = {}
    processes: dict[str, set[str]] = {}
    for line in file.read_text().splitlines():
        name, size, process, image = line.split()
        if int(size) == rows:
            forwards[name] += 1
            processes.setdefault(name, set()).add(process)
            images.setdefault(name, set()).add(image)
    new = {name: len(each) for name, each in images.items()}
    again = {name: count - new[name] for name, count in forwards.items()}
    counts = {name: len(each) for name, each in processes.items()}
    return {"forwards": dict(forwards), "new": new, "again": again, "processes": counts}


if __name__ == "__main__":
    main()
