"""The quickstart over three seeds: what does its student keep of its teacher, at which cost?

``python -m benchmarks.quickstart_seeds [--seeds 1 2 3]``. Runs ``radioplat quickstart`` as a newcomer does, once for
each seed; the training's seed determines crops and order. Corpora, the teachers' weights and what is cut away are the
same.

The last line on stdout is one JSON object of means over the seeds: ``knn_kept`` and ``int8_knn_kept`` (kNN accuracy of
the student and of its INT8 engine over the teacher's), ``knn_gain_over_start`` (over the pruned network before it is
taught, in accuracy), the same three with ``index`` for ``knn`` (held-out crops encoded by the student, training crops
by the teacher), ``macs_ratio`` (multiply-accumulates of the student over the teacher's at the same image size),
``bytes_ratio`` (file of the INT8 engine over the fp32 weights of lite0, the better teacher and the smaller one),
``latency_ratio`` and ``latency_ratio_float`` (INT8 engine over the engine of the teacher and over the student's own
float one, one image), ``seconds`` (of the whole command), and ``seeds``: all figures of each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.folder import kept_or_scratch
from radioplat.quickstart.tour import INT8, START, STUDENT, TEACHER


def main() -> None:
    """Run each seed and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, help="for what the runs leave; default: a temporary one")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "quickstart_seeds") as folder:
        seeds = {str(seed): figures(folder / str(seed), seed) for seed in given.seeds}
    names = next(iter(seeds.values()))
    means = {name: round(statistics.fmean(one[name] for one in seeds.values()), 4) for name in names}
    print(json.dumps(means | {"seeds": seeds}))


def figures(home: Path, seed: int) -> dict[str, float]:
    """Run the quickstart with a seed; return its figures."""
    begin = time.monotonic()
    overrides = [f"results_dir={home}", f"train.seed={seed}", f"dataset.train_dataset.seed={seed}"]
    subprocess.run([sys.executable, "-m", "radioplat.cli", "quickstart", *overrides], check=True, stdout=sys.stderr)
    seconds = time.monotonic() - begin
    results = json.loads((home / "side_by_side" / "results.json").read_text(encoding="utf-8"))
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in results["models"]}
    cut = json.loads((home / "prune" / "model_pruned" / "prune.json").read_text(encoding="utf-8"))
    weights = home / "weights" / "tf_efficientnet_lite0.safetensors"
    teacher = rows[TEACHER]["knn"]
    found = {
        "knn_kept": rows[STUDENT]["knn"] / teacher,
        "knn_gain_over_start": rows[STUDENT]["knn"] - rows[START]["knn"],
        "int8_knn_kept": rows[INT8]["knn"] / teacher,
        "index_kept": rows[STUDENT]["shared_index"] / teacher,
        "index_gain_over_start": rows[STUDENT]["shared_index"] - rows[START]["shared_index"],
        "int8_index_kept": rows[INT8]["shared_index"] / teacher,
        "macs_ratio": cut["after"]["macs"] / cut["before"]["macs"],
        "bytes_ratio": rows[INT8]["bytes"] / weights.stat().st_size,
        "latency_ratio": rows[INT8]["milliseconds"] / rows[TEACHER]["milliseconds"],
        "latency_ratio_float": rows[INT8]["milliseconds"] / rows[STUDENT]["milliseconds"],
        "seconds": seconds,
        "knn_teacher": teacher,
        "knn_start": rows[START]["knn"],
        "knn_student": rows[STUDENT]["knn"],
        "knn_int8": rows[INT8]["knn"],
        "index_start": rows[START]["shared_index"],
        "index_student": rows[STUDENT]["shared_index"],
        "index_int8": rows[INT8]["shared_index"],
    }
    return {name: round(value, 4) for name, value in found.items()}


if __name__ == "__main__":
    main()
