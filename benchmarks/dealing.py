"""How much less time do two workers take if micro-batches are dealt by cost, and do they learn the same?

``python -m benchmarks.dealing``. `benchmarks.judges.dealing`, which imports nothing of radioplat, trains a ViT on
images of 64 to 256 px with two workers of Ray on two cores: with even dealing and by cost in turn, at ZeRO 1 (workers
wait for each other once a step) and 2 (after each micro-batch), and at ZeRO 1 with so much of a core taken from one of
them that it is about half as fast as the other. What a micro-batch of each size costs is fitted to the steps of even
dealing; `benchmarks.judges.best_dealing` tries all ways to deal with these costs. A model
(:mod:`benchmarks.dealing_model`) gives figures for 8, 64 and 256 ranks.

The last line on stdout is one JSON object: ``mixed_zero1_over_optimum`` and ``mixed_zero2_over_optimum`` (the measured
speed-up over that of the best dealing), ``uneven_speedup``, ``modelled_speedup_64`` (four micro-batches a rank, ranks
wait once a step), ``loss_difference`` (relative, largest of the first 20 steps), ``ids_equal``, and what they are from.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dealing_model import modelled
from benchmarks.elastic_inputs import make_inputs, tiny_spec
from benchmarks.folder import kept_or_scratch
from benchmarks.teach.programs import last_line

SIZES = {64: 0.6, 128: 0.1, 192: 0.1, 256: 0.2}  # chances
MICRO_BATCHES, BATCH = 8, 3  # of a step, and images of one
STEPS, SKIP = 52, 28  # after the first change of the dealing, whose streams are opened while others are read
RUNS = {1: ("even", "cost", "cost", "even"), 2: ("even", "cost")}  # by ZeRO stage
UNEVEN_STEPS, UNEVEN_SKIP, UNEVEN_SIZE = 56, 40, 128
UNEVEN_MICRO_BATCHES = 12  # eight and four take as long on two workers of which one has half of a core
PARTS = ("mixed", "uneven")
STUDENT = {
    "type": "c_radio_v3_vit_base_patch16_reg4_dinov2",
    "kwargs": {"embed_dim": 384, "depth": 6, "num_heads": 6},
}


def main() -> None:
    """Measure, compare with the best dealing and with a model, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="for what the runs leave; default: a temporary one")
    parser.add_argument("--only", choices=PARTS, help="one part; the figures of the other are missing then")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "dealing") as folder:
        print(json.dumps(measured(folder, (given.only,) if given.only else PARTS)))


def measured(folder: Path, parts: Sequence[str]) -> dict[str, Any]:
    """Return all figures."""
    make_inputs(folder / "inputs")
    found: dict[str, Any] = {}
    runs: dict[str, dict[str, Any]] = {}
    sizes = sizes_of_steps(folder)
    for stage in (1, 2) if "mixed" in parts else ():
        runs[f"zero{stage}"] = judged = judge(
            folder, f"zero{stage}", mixed(folder, stage), SKIP, "--runs", *RUNS[stage]
        )
        even = [statistics.fmean(step) for step in zip(*judged["seconds"]["even"], strict=True)]
        once, each = costs_of(sizes, even, in_slots=stage == 2)
        costs = [[each[size] for size in step] for step in sizes]
        best = piped("benchmarks.judges.best_dealing", costs)["once" if stage == 1 else "each"]
        waits = once * len(costs)
        allowed = (best["even"] + waits) / (best["best"] + waits)
        speedup, interval = ratio(judged["seconds"])
        found[f"mixed_zero{stage}_over_optimum"] = round(speedup / allowed, 3)
        found[f"mixed_zero{stage}"] = {
            "speedup": round(speedup, 3),
            "interval": interval,
            "dealt_anew_at": judged["anew"],
            "best_allowed": round(allowed, 3),
            "seconds_of_size": {size: round(cost, 4) for size, cost in each.items()},
            "seconds_a_step_beside": round(once, 4),
            "even_modelled": round((best["even"] + waits) / len(costs), 3),
            "best_modelled": round((best["best"] + waits) / len(costs), 3),
            **{kind: round(mean(lists), 3) for kind, lists in judged["seconds"].items()},
        }
        print(f"zero {stage}: {found[f'mixed_zero{stage}']}", file=sys.stderr, flush=True)
    if "uneven" in parts:
        alike = one_size(folder)
        runs["uneven"] = judge(folder, "uneven", alike, UNEVEN_SKIP, "--take-cpu", "--runs", "even", "cost")
        speedup, interval = ratio(runs["uneven"]["seconds"])
        found["uneven_speedup"] = round(speedup, 3)
        found["uneven"] = {
            "interval": interval,
            "dealt_anew_at": runs["uneven"]["anew"],
            "slowness": runs["uneven"]["slowness"],
            **{kind: round(mean(lists), 3) for kind, lists in runs["uneven"]["seconds"].items()},
        }
    model = modelled()
    at = next(row for row in model if (row["ranks"], row["each"]) == (64, 4))
    found["modelled_speedup_64"] = round(at["even"] / at["cost"], 2)
    found["loss_difference"] = max(run["loss_difference"] for run in runs.values())
    found["ids_equal"] = float(all(run["ids_equal"] for run in runs.values()))
    found["samples_compared"] = sum(run["samples"] for run in runs.values())
    return found | {"model": model}


def mixed(folder: Path, stage: int) -> dict[str, Any]:
    """Return the spec of a run whose micro-batches have sizes of their own."""
    spec = spec_of(folder, stage, STEPS)
    spec["distill"]["partitions"] = [{"share": 1.0, "teachers": ["vit"], "sizes": SIZES}]
    return spec


def one_size(folder: Path) -> dict[str, Any]:
    """Return the spec of a run whose micro-batches are all alike."""
    spec = spec_of(folder, 1, UNEVEN_STEPS)
    spec["dataset"]["img_size"] = UNEVEN_SIZE
    spec["train"]["global_batch_size"] = BATCH * UNEVEN_MICRO_BATCHES
    return spec


def spec_of(folder: Path, stage: int, steps: int) -> dict[str, Any]:
    """Return what all runs have in common: two workers, a small teacher inside each, and few checkpoints."""
    spec = tiny_spec(folder / "inputs", folder, steps, (2, 2))
    spec["model"]["backbone"] = STUDENT
    spec["dataset"] |= {"img_size": max(SIZES), "batch_size": BATCH}
    spec["train"] |= {
        "global_batch_size": BATCH * MICRO_BATCHES,
        "zero_stage": stage,
        "checkpoint_interval": steps,
        "threads": 1,
        "resize_interval_s": 600.0,
    }
    spec["distill"]["teacher"][0]["input_size"] = min(SIZES)
    spec["teachers"] = {"vit": {"placement": "inline"}}
    spec["feature_cache"] = {"enabled": False}
    spec["cluster"] |= {"cpus_per_worker": 0.5}
    return spec


def costs_of(sizes: list[list[int]], seconds: list[float], in_slots: bool) -> tuple[float, dict[int, float]]:
    """Return the seconds that a step takes beside its micro-batches, and those of a micro-batch by size.

    They are fitted by least squares to the steps of even dealing: a step takes as long as its slower worker, with slots
    as the dearer micro-batch of each pair. Which worker is the slower one follows from the fit before.
    """
    kinds = list(SIZES)
    costs = {size: float(size) for size in kinds}
    fitted = np.zeros(1 + len(kinds))
    for _ in range(10):
        rows = []
        for step in sizes:
            if in_slots:
                counted = [max(step[i : i + 2], key=costs.__getitem__) for i in range(0, len(step), 2)]
            else:
                counted = max(step[0::2], step[1::2], key=lambda own: sum(map(costs.__getitem__, own)))
            rows.append([1.0, *(counted.count(size) for size in kinds)])
        fitted = np.linalg.lstsq(np.array(rows), np.array(seconds), rcond=None)[0]
        costs = dict(zip(kinds, fitted[1:].tolist(), strict=True))
    return float(fitted[0]), costs


def sizes_of_steps(folder: Path) -> list[list[int]]:
    """Return the sizes of the micro-batches of each step of a mixed run that counts."""
    from radioplat.data.views.kinds import kinds
    from radioplat.design.views import run_views
    from radioplat.spec.loading.load import load_spec
    from radioplat.spec.resolved.teacher import student_view

    spec = load_spec(mixed(folder, 1))
    views = [view for view in run_views(spec, [], {}, 16) if view.name == student_view(spec)]
    drawn = [size for (size,) in kinds(views, spec.dataset.train_dataset.seed, 0, STEPS * MICRO_BATCHES)]
    return [drawn[i : i + MICRO_BATCHES] for i in range(SKIP * MICRO_BATCHES, len(drawn), MICRO_BATCHES)]


def judge(folder: Path, name: str, spec: dict[str, Any], skip: int, *options: str) -> dict[str, Any]:
    """Let the judge train; return what it printed."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return last_line("benchmarks.judges.dealing", path, folder / name, "--skip", skip, *options)


def piped(module: str, content: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the JSON object in the last line of a program that reads JSON."""
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, check=True, input=json.dumps(content), stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def ratio(seconds: dict[str, list[list[float]]]) -> tuple[float, tuple[float, float]]:
    """Return seconds of even steps over those dealt by cost, and its 95 % interval, by drawing steps again.

    The seconds of a step are the mean of its runs.
    """
    even, cost = ([statistics.fmean(step) for step in zip(*seconds[kind], strict=True)] for kind in ("even", "cost"))
    draw = random.Random(0)
    ratios = []
    for _ in range(2000):
        drawn = draw.choices(range(len(even)), k=len(even))
        ratios.append(sum(even[i] for i in drawn) / sum(cost[i] for i in drawn))
    ratios.sort()
    return sum(even) / sum(cost), (round(ratios[50], 3), round(ratios[-51], 3))


def mean(lists: list[list[float]]) -> float:
    """Return the mean of all numbers."""
    return statistics.fmean(value for values in lists for value in values)


if __name__ == "__main__":
    main()
