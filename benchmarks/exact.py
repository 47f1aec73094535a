"""Are weights the same, bit for bit, at any number of workers, and what does that cost?

``python -m benchmarks.exact [--only weights | cost]``. Weights: `benchmarks.judges.same_weights`, which imports nothing
of radioplat, trains a RADIO ViT and a CNN with BatchNorm for 120 steps with two teachers, running PHI-S and an average,
with one and two workers of Ray, and with three, of which it kills one and which it resizes; with ``train.reduction:
fast``, the control, weights must differ. Cost: a CNN is taught on the corpora of `benchmarks.teach` for one pass, three
seeds with each kind of sums in turn, with two threads; seconds a step, and kNN by `benchmarks.judges.knn`.

The last line on stdout is one JSON object: ``weights_equal`` and ``fast_differs`` (1.0 if all are), ``overhead`` (share
of a step, median over seeds), ``knn_difference`` (exact minus fast, with its interval).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.elastic_inputs import make_inputs, tiny_spec
from benchmarks.teach import scratch
from benchmarks.teach.programs import FIGURE, TEACHERS, compared, distil, embedded, last_line
from radioplat.quickstart.weights import teacher_weights

STEPS, SEEDS, THREADS = 120, (1, 2, 3), 2
STUDENTS: dict[str, dict[str, Any]] = {
    "vit": {},  # that of `tiny_spec`
    "cnn": {"type": "test_efficientnet"},
}


def main() -> None:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("weights", "cost"))
    parser.add_argument(
        "--folder", type=Path, default=Path("results/teach"), help="with the corpora of benchmarks.teach"
    )
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    if given.only != "cost":
        with tempfile.TemporaryDirectory() as home:
            figures |= weights(Path(home))
    if given.only != "weights":
        figures |= cost(given.folder.resolve())
    print(json.dumps(figures))


def weights(home: Path) -> dict[str, Any]:
    """Compare weights between numbers of workers, for both students and both kinds of sums."""
    make_inputs(home / "inputs")
    figures: dict[str, Any] = {}
    for student in STUDENTS:
        for reduction in ("exact", "fast"):
            name = f"{student}, {reduction}"
            spec = home / f"{student}_{reduction}.json"
            spec.write_text(json.dumps(spec_of(home, student, reduction)), encoding="utf-8")
            calm = ["--undisturbed"] if reduction == "fast" else []
            folder = home / f"{student}_{reduction}"
            figures[name] = last_line("benchmarks.judges.same_weights", spec, folder, STEPS, *calm)
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
    equal = [figures[f"{student}, exact"]["equal"] for student in STUDENTS]
    differs = [not figures[f"{student}, fast"]["equal"] for student in STUDENTS]
    return {"weights_equal": float(all(equal)), "fast_differs": float(all(differs)), "weights": figures}


def spec_of(home: Path, student: str, reduction: str) -> dict[str, Any]:
    """Return the spec of a run with two teachers; the judge sets workers and folder."""
    train = {
        "engine": "ddp",
        "zero_stage": 0,
        "reduction": reduction,
        "threads": 1,
        "enable_ema": True,
        "max_steps": STEPS,
        "resize_interval_s": 600.0,
    }
    spec = tiny_spec(home / "inputs", home, STEPS, (1, 1), **train)
    if STUDENTS[student]:
        spec["model"]["backbone"] = STUDENTS[student]
    first = spec["distill"]["teacher"][0]
    spec["distill"]["teacher"] = [first, {**first, "name": "second", "mode": "spatial"}]
    spec["distill"]["target_norm"] = {"type": "phi_s", "fit": "running", "refresh_steps": 10}
    spec["teachers"]["second"] = spec["teachers"]["vit"]
    return spec


def cost(folder: Path) -> dict[str, Any]:
    """Compare seconds a step and kNN of both kinds of sums."""
    last_line("benchmarks.teach.corpora", "--folder", folder / "corpora")
    weights = teacher_weights(TEACHERS[scratch.TEACHER], folder / "weights")
    files: dict[str, list[Path]] = {"exact": [], "fast": []}
    ratios = []
    for seed in SEEDS:
        seconds = {}
        for reduction, embeddings in files.items():
            home = folder / "exact" / f"{reduction}_seed_{seed}"
            spec = scratch.spec_of(folder / "corpora", weights, seed, scratch.PASS)
            spec["train"] |= {"engine": "ddp", "reduction": reduction, "threads": THREADS}
            onnx = distil(home, spec)
            embeddings.append(embedded(onnx.with_name("embeddings.npz"), folder / "corpora", onnx))
            seconds[reduction] = step_seconds(home)
        ratios.append(seconds["exact"] / seconds["fast"] - 1)
    judged = compared(files["exact"], files["fast"])
    return {
        "overhead": round(statistics.median(ratios), 4),
        "overhead_by_seed": [round(ratio, 4) for ratio in ratios],
        "knn_difference": judged["differences"][FIGURE],
        "knn_exact": judged["figures"][FIGURE],
    }


def step_seconds(home: Path) -> float:
    """Return the median seconds of a step, as the run reported them."""
    lines = (home / "distill" / "status.json").read_text(encoding="utf-8").splitlines()
    kpis = [json.loads(line)["kpi"] for line in lines]
    return statistics.median(kpi["seconds/step"] for kpi in kpis if "seconds/step" in kpi)


if __name__ == "__main__":
    main()
