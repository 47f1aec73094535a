"""The quickstart's student over three seeds: is it better than its untrained self by more than the seeds differ?

``python -m benchmarks.quickstart_seeds``. Weights, crops and order all follow the seed; corpora and teachers do not.
Prints fidelity and kNN of the untrained and the trained student for each seed, then means and spreads as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from radioplat.common import terminal
from radioplat.quickstart.defaults import ROOT, SPEC, ensure_inputs
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.students import EvaluateResult

SEEDS = (1, 2, 3)
HOME = ROOT / "results" / "quickstart_seeds"


def main() -> None:
    """Train, evaluate and print."""
    ensure_inputs([f"results_dir={HOME}"])
    found = {seed: _run(seed) for seed in SEEDS}
    rows = {name: [_figures(found[seed])[name] for seed in SEEDS] for name in _figures(found[SEEDS[0]])}
    terminal.show_table(
        "quickstart over three seeds",
        ["measure", "student", *(f"seed {s}" for s in SEEDS), "mean", "spread"],
        [
            [
                *name.split("/"),
                *(f"{v:.3f}" for v in values),
                f"{sum(values) / len(values):.3f}",
                f"{max(values) - min(values):.3f}",
            ]
            for name, values in rows.items()
        ],
        note="spread: largest minus smallest",
    )
    print(json.dumps({name: {"values": values, "spread": max(values) - min(values)} for name, values in rows.items()}))


def _run(seed: int) -> EvaluateResult:
    overrides = [
        f"results_dir={HOME / str(seed)}",
        f"train.seed={seed}",
        f"dataset.train_dataset.seed={seed}",
        *_shared_inputs(),
    ]
    command = [sys.executable, str(ROOT / "jobs" / "radio_distill.py"), "-e", str(SPEC), *overrides]
    subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}, check=True, stdout=sys.stderr)
    return evaluate(SPEC, tuple(overrides))


def _shared_inputs() -> list[str]:
    """Corpora and weights of all seeds lie together."""
    spec = load_spec(SPEC, [f"results_dir={HOME}"])
    overrides = [
        f"dataset.{split}.tar_data_sources[{i}].root_dir={source.root_dir}"
        for split in ("train_dataset", "val_dataset")
        for i, source in enumerate(getattr(spec.dataset, split).tar_data_sources)
    ]
    overrides += [
        f"distill.teacher[{i}].pretrained_teacher_model_path={teacher.pretrained_teacher_model_path}"
        for i, teacher in enumerate(spec.distill.teacher)
    ]
    return [*overrides, f"dataset.index_dir={Path(HOME) / 'index'}"]


def _figures(result: EvaluateResult) -> dict[str, float]:
    figures = {}
    for student in ("untrained student", "student"):
        figures[f"kNN top-1/{student}"] = result.knn[student].top1
        for teacher, kinds in result.fidelity[student].items():
            for kind, value in kinds.items():
                figures[f"fidelity to {teacher}, {kind}/{student}"] = value.centered
    return figures


if __name__ == "__main__":
    main()
