"""Are weights the same, bit for bit, at any number of workers, and what does that cost?

``python -m benchmarks.exact [--only weights | cost] [--case NAME ...]``. Weights: `benchmarks.judges.same_weights`,
which imports nothing of radioplat, trains a RADIO ViT and a CNN with BatchNorm for 120 steps with two teachers, running
PHI-S and an average, with one and two workers of Ray, and with three, of which it kills one and which it resizes; with
``train.reduction: fast``, the control, weights must differ. Both with ``ddp``; ``--case "vit, ZeRO 1"`` is with
DeepSpeed. Cost: a CNN is taught on the corpora of `benchmarks.teach` for one pass, three seeds with each kind of sums
in turn, with two threads; seconds a step, and kNN by `benchmarks.judges.knn`.

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
VIT: dict[str, Any] = {}  # that of `tiny_spec`
CNN = {"type": "test_efficientnet"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the student, and settings of `train`
    "vit": (VIT, {"engine": "ddp", "zero_stage": 0}),
    "cnn": (CNN, {"engine": "ddp", "zero_stage": 0}),
    "vit, ZeRO 1": (VIT, {"engine": "deepspeed", "zero_stage": 1}),
}


def main() -> None:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("weights", "cost"))
    parser.add_argument(
        "--folder", type=Path, default=Path("results/teach"), help="with the corpora of benchmarks.teach"
    )
    parser.add_argument("--case", nargs="+", choices=CASES, default=["vit", "cnn"], metavar="NAME")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    if given.only != "cost":
        with tempfile.TemporaryDirectory() as home:
            figures |= weights(Path(home), given.case)
    if given.only != "weights":
        figures |= cost(given.folder.resolve())
    print(json.dumps(figures))


def weights(home: Path, cases: list[str]) -> dict[str, Any]:
    """Compare weights between numbers of workers, for each case and both kinds of sums."""
    make_inputs(home / "inputs")
    figures: dict[str, Any] = {}
    for number, case in enumerate(cases):
        for reduction in ("exact", "fast"):
            name = f"{case}, {reduction}"
            folder = home / f"{number}_{reduction}"
            spec = folder.with_suffix(".json")
            spec.write_text(json.dumps(spec_of(home, case, reduction)), encoding="utf-8")
            calm = ["--undisturbed"] if reduction == "fast" else []
            figures[name] = last_line("benchmarks.judges.same_weights", spec, folder, STEPS, *calm)
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
    equal = [figures[f"{case}, exact"]["equal"] for case in cases]
    differs = [not figures[f"{case}, fast"]["equal"] for case in cases]
    return {"weights_equal": float(all(equal)), "fast_differs": float(all(differs)), "weights": figures}


def spec_of(home: Path, case: str, reduction: str) -> dict[str, Any]:
    """Return the spec of a run with two teachers; the judge sets workers and folder."""
    student, settings = CASES[case]
    train = settings | {
        "reduction": reduction,
        "threads": 1,
        "enable_ema": True,
        "max_steps": STEPS,
        "resize_interval_s": 600.0,
    }
    spec = tiny_spec(home / "inputs", home, STEPS, (1, 1), **train)
    if student:
        spec["model"]["backbone"] = student
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
