"""What distillation and quantization are worth in the tasks that a student is made for.

``python -m benchmarks.tasks [--seeds 3] [--only KIND ...] [--folder DIR]``. Each kind is a module that says what it
compares: :mod:`benchmarks.tasks_classification`, :mod:`benchmarks.tasks_detection`, :mod:`benchmarks.tasks_dino`,
:mod:`benchmarks.tasks_quantize`. Two jobs at a time, a thread each; with ``--folder`` what is there is not done again.
Prints a table of each kind, means and seeds; the last line is one JSON object of means in percentage points, ``null``
for what is not measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from pathlib import Path
from statistics import mean

from benchmarks.folder import kept_or_scratch
from benchmarks.seeds import run_seeds
from radioplat.common import terminal

KINDS = {  # modules with run(seed, folder) and gains(runs)
    "classification": "benchmarks.tasks_classification",
    "rtdetr": "benchmarks.tasks_detection",
    "dino": "benchmarks.tasks_dino",
    "quantize": "benchmarks.tasks_quantize",
}
FIGURES = ("cls_gain", "rtdetr_gain", "dino_gain", "det_ptq_drop", "det_qat_drop")
AT_ONCE = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What distillation is worth by task; see the head of the file.")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--folder", type=Path, help="keep everything here, and go on from what is here")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # in the processes that are started below
    seeds = range(1, given.seeds + 1)
    with kept_or_scratch(given.folder, "tasks") as folder:
        found = run_seeds(_run, [(kind, seed) for kind in given.only for seed in seeds], folder, AT_ONCE)
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    rows = []
    for kind in given.only:
        runs = [found[kind, seed] for seed in seeds]
        measured = [[name, *_spread([run[name] for run in runs])] for name in runs[0]]
        terminal.show_table(f"{kind}: percent on held-out images", ["", "mean", "seeds"], measured)
        for name, values in importlib.import_module(KINDS[kind]).gains(runs).items():
            figures[name] = round(mean(values), 4)
            rows.append([name, *_spread(values)])
    rows += [[name, "not measured", ""] for name, value in figures.items() if value is None]
    terminal.show_table("percentage points", ["", "mean", "seeds"], rows)
    print(json.dumps(figures))


def _run(kind: str, seed: int, folder: Path) -> dict[str, float]:
    return importlib.import_module(KINDS[kind]).run(seed, folder)


def _spread(values: list[float]) -> list[str]:
    return [f"{mean(values):.2f}", " ".join(f"{value:.2f}" for value in values)]


if __name__ == "__main__":
    main()
