"""What parts of the recipe are worth on real images: losses, target standardization, CPE and registers.

``python -m benchmarks.recipe [--seeds 1 2 3] [--steps 200] [--only VARIANT ...] [--at-once 2] [--folder DIR]
[--minutes M]``. The quickstart's corpora, teachers, student and hyperparameters; only what a variant's name says
differs, and each variant has the same seeds and steps. Every run is ``radioplat.distill`` and ``radioplat.evaluate``,
in local mode with one thread, two at a time; teachers are asked once for all (feature cache). The held-out images are
used for nothing but the figures.

``mse``: mean squared error on features as they are; the next three change one thing of it: ``phi_s`` the targets,
``balanced`` all losses, ``angle`` the summary's. ``radio`` is PHI-S for maps and ``angle`` for summaries; the last two
take CPE or registers from it. Fidelity is the cosine after the teacher's mean was taken away, kNN the share of held-out
crops whose photograph is named; each at the size of training and at twice that.

With ``--folder`` what is finished there is not run again and what was interrupted goes on; ``--minutes`` starts no run
after so many. The last line on stdout is one JSON object: means and spreads by variant, differences as ``<a>_vs_<b>``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.recipe_variants import OTHER, SIZE, VARIANTS, Figures, Job, finished
from radioplat.common import terminal

DIFFERENCES = [
    ("phi_s", "mse"),
    ("balanced", "mse"),
    ("angle", "mse"),
    ("radio", "mse"),
    ("radio", "radio_without_cpe"),
    ("radio", "radio_without_registers"),
]
SHORT = {"fidelity": "", "summary": "summary", "spatial": "map", "knn": "kNN"}
Table = dict[str, dict[str, list[float]]]  # variant -> measure -> a value for each seed


def main() -> None:
    """Run what is not there yet, then print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments.add_argument("--steps", type=int, default=200, help="of 16 images")
    arguments.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    arguments.add_argument("--at-once", type=int, default=2, help="runs side by side, a thread each")
    arguments.add_argument("--folder", type=Path, help="keep everything here, and go on from what is here")
    arguments.add_argument("--minutes", type=float, help="start no run after so many; needs --folder to be of use")
    given = arguments.parse_args()
    # One thread a process, in the processes that are started below.
    os.environ["OMP_NUM_THREADS"] = "1"
    until = time.monotonic() + given.minutes * 60 if given.minutes else float("inf")
    with _folder(given.folder) as folder:
        jobs = [Job(v, seed, given.steps, folder) for seed in given.seeds for v in given.only]
        figures = {job: done for job in jobs if (done := finished(job))}
        waiting = [job for job in jobs if job not in figures]
        if waiting:
            for job, done in _run_all(waiting, given.at_once, until):
                figures[job] = done
                _tell(job, done, len(figures), len(jobs))
        if len(figures) < len(jobs):
            sys.exit(f"{len(figures)} of {len(jobs)} runs are done; the same command goes on")
    _report({v: [figures[job] for job in jobs if job.variant == v] for v in given.only}, given.steps, given.seeds)


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """An absolute folder: the user's, or one that goes again."""
    if given is not None:
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="recipe") as scratch:
        yield Path(scratch)


def _run_all(jobs: list[Job], at_once: int, until: float) -> Iterator[tuple[Job, Figures]]:
    """Runs as they end. What is not begun at ``until`` (monotonic seconds) is left out."""
    # Processes that stay: importing torch and DeepSpeed takes as long as a tenth of a run. This one does without.
    with ProcessPoolExecutor(at_once, get_context("spawn"), _all_to_stderr) as pool:
        pool.submit(_make_inputs, jobs[0]).result()
        left = list(reversed(jobs))
        running = {}
        while left or running:
            while left and len(running) < at_once and time.monotonic() < until:
                job = left.pop()
                running[pool.submit(_run, job)] = job
            if not running:
                return
            done = next(as_completed(running))
            yield running.pop(done), done.result()


def _make_inputs(job: Job) -> None:
    from benchmarks.recipe_runs import make_inputs

    make_inputs(job)


def _run(job: Job) -> Figures:
    from benchmarks.recipe_runs import run

    return run(job)


def _all_to_stderr() -> None:
    """What libraries print goes where progress goes."""
    os.dup2(2, 1)


def _tell(job: Job, done: Figures, number: int, of: int) -> None:
    knn = ", ".join(f"{done.trained[f'knn_{size}']:.3f} at {size}" for size in (SIZE, OTHER))
    terminal.note(f"{number} of {of}: {job.variant}, seed {job.seed}: kNN {knn}; {done.cpu_s:.0f} s of a core")


def _report(runs: dict[str, list[Figures]], steps: int, seeds: list[int]) -> None:
    table: Table = {variant: _by_measure([one.trained for one in found]) for variant, found in runs.items()}
    untrained = _by_measure([one.untrained for found in runs.values() for one in found if one.untrained])
    shown = {"untrained": untrained, **table} if untrained else table
    differences = {(a, b): _differences(table[a], table[b]) for a, b in DIFFERENCES if a in table and b in table}
    measures = list(next(iter(table.values())))
    for size in (SIZE, OTHER):
        _show(shown, [m for m in measures if m.endswith(f"_{size}")], size)
    for size in (SIZE, OTHER):
        _show_differences(differences, [m for m in measures if m.endswith(f"_{size}")], size)
    teachers = next(iter(runs.values()))[0].teachers
    terminal.say("kNN of the teachers: " + ", ".join(f"{name} {value:.3f}" for name, value in teachers.items()))
    result: dict[str, Any] = {
        "steps": steps,
        "seeds": seeds,
        "cpu_s": round(sum(one.cpu_s for found in runs.values() for one in found)),
        "teachers_knn": teachers,
        **{variant: {m: _summary(values) for m, values in by.items()} for variant, by in shown.items()},
        **{f"{a}_vs_{b}": found for (a, b), found in differences.items()},
    }
    print(json.dumps(result))


def _by_measure(found: list[dict[str, float]]) -> dict[str, list[float]]:
    return {measure: [one[measure] for one in found] for measure in found[0]} if found else {}


def _summary(values: list[float]) -> dict[str, Any]:
    rounded = [round(value, 4) for value in values]
    return {"mean": round(mean(values), 4), "spread": round(_spread(values), 4), "values": rounded}


def _spread(values: list[float]) -> float:
    return max(values) - min(values)


def _differences(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """The difference of the means, and whether it is larger than either side's spread over seeds."""
    found = {}
    for measure, values in ours.items():
        difference = mean(values) - mean(theirs[measure])
        noise = max(_spread(values), _spread(theirs[measure]))
        found[measure] = {
            "difference": round(difference, 4),
            "spread": round(noise, 4),
            "beyond_spread": len(values) > 1 and abs(difference) > noise,
        }
    return found


def _show(table: Table, measures: list[str], size: int) -> None:
    rows = [
        [variant, *(f"{mean(by[m]):.3f} ({_spread(by[m]):.3f})" if m in by else "" for m in measures)]
        for variant, by in table.items()
    ]
    note = "mean (largest minus smallest over seeds)"
    terminal.show_table(f"at {size} pixels", ["", *map(_title, measures)], rows, note=note)


def _show_differences(differences: dict, measures: list[str], size: int) -> None:
    rows = [
        [f"{a} - {b}", *(f"{d[m]['difference']:+.3f}{'' if d[m]['beyond_spread'] else ' ~'}" for m in measures)]
        for (a, b), d in differences.items()
    ]
    if rows:
        note = "~: not larger than the spread of either side"
        terminal.show_table(f"differences at {size} pixels", ["", *map(_title, measures)], rows, note=note)


def _title(measure: str) -> str:
    """``fidelity_lite0_spatial_96`` -> ``lite0 map``."""
    return " ".join(SHORT.get(word, word) for word in measure.split("_")[:-1]).strip()


if __name__ == "__main__":
    main()
