"""The quickstart over three seeds: what does its student keep of its teacher, at which cost?

``python -m benchmarks.quickstart_seeds [--seeds 1 2 3] [--folder DIR] [--made] [--corpora DIR]``. Runs ``radioplat
quickstart`` as a newcomer does, once for each seed; the training's seed determines crops and order. Corpora, the
teachers' weights and what is cut away are the same. ``--made`` measures runs that are complete in ``DIR/SEED``, and
times nothing.

The last line on stdout is one JSON object of means over the seeds: ``knn_kept`` and ``int8_knn_kept`` (kNN accuracy of
the student and of its INT8 engine over the teacher's), ``knn_gain_over_start`` (over the pruned network before it is
taught, in accuracy), the same three with ``index`` for ``knn`` (held-out crops encoded by the student, training crops
by the teacher), ``macs_ratio`` (multiply-accumulates of the student over the teacher's at the same image size),
``bytes_ratio`` (file of the INT8 engine over the fp32 weights of lite0, the better teacher and the smaller one),
``latency_ratio`` and ``latency_ratio_float`` (INT8 engine over the engine of the teacher and over the student's own
float one, one image), ``seconds`` (of the whole command), and ``seeds``: all figures of each. With ``--corpora``, the
folder of ``python -m benchmarks.teach.corpora``, also ``judge``: kNN on other pictures, by scene and by picture, of the
teacher, the start, the fitted part and the student, each with its noise floor, and the student's paired differences
from the others (`benchmarks/judges/knn.py`).
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
from benchmarks.teach.programs import TEACHERS, compared, embedded, exported
from radioplat.quickstart.tour import FITTED, INT8, START, STUDENT, TEACHER
from radioplat.quickstart.weights import MEAN, STD

SIDE = 96  # pixels of the crops, and of the quickstart's images
FIGURES = ("scenes.knn", "pictures.knn")
# By the names that the judge's figures have.
CHECKPOINTS = {
    "start": "untaught/model_pruned",
    "fitted": "prune/model_pruned",
    "student": "distill/model_latest",
}


def main() -> None:
    """Run each seed and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, help="for what the runs leave; default: a temporary one")
    parser.add_argument("--made", action="store_true", help="measure the complete runs of --folder")
    parser.add_argument("--corpora", type=Path, help="of benchmarks.teach.corpora: let the judge embed and name them")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "quickstart_seeds") as folder:
        homes = {str(seed): folder / str(seed) for seed in given.seeds}
        seeds = {seed: figures(home, None if given.made else int(seed)) for seed, home in homes.items()}
        judge = {"judge": judged([*homes.values()], given.corpora)} if given.corpora else {}
    names = next(iter(seeds.values()))
    means = {name: round(statistics.fmean(one[name] for one in seeds.values()), 4) for name in names}
    print(json.dumps(means | judge | {"seeds": seeds}))


def judged(homes: list[Path], corpora: Path) -> dict[str, Any]:
    """Return the judge's figures of the models of all runs, and the student's differences from what it was."""
    card = ["--timm", TEACHERS["lite0"], "--mean", *MEAN, "--std", *STD]
    files: dict[str, list[Path]] = {name: [] for name in CHECKPOINTS}
    teachers = []
    for home in homes:
        made = home / "judge"
        weights = home / "weights" / f"{TEACHERS['lite0']}.safetensors"
        teachers.append(scenes(made / "teacher.npz", corpora, *card, "--weights", weights))
        for name, checkpoint in CHECKPOINTS.items():
            spec = {"dataset": {"img_size": SIDE}, "export": {"checkpoint": str(home / checkpoint)}}
            onnx = exported(made / name, spec)
            files[name].append(scenes(onnx.with_name("embeddings.npz"), corpora, onnx))
    sides = {name: compared(files["student"], others) for name, others in {"teacher": teachers, **files}.items()}
    found: dict[str, Any] = {name: _in_short(side["against"]) for name, side in sides.items()}
    for name in ("teacher", "start", "fitted"):
        found[f"student - {name}"] = {figure: sides[name]["differences"][figure] for figure in FIGURES}
    return found


def scenes(target: Path, corpora: Path, *model: object) -> Path:
    """Embed the crops of scenes by the judge's program; return the file, which is not written again."""
    return embedded(target, corpora, *model, "--only", "scenes")


def _in_short(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: {key: figures[name][key] for key in ("value", "noise_floor", "by_file")} for name in FIGURES}


def figures(home: Path, seed: int | None) -> dict[str, float]:
    """Run the quickstart with a seed, or if it is None measure what is there; return its figures."""
    begin = time.monotonic()
    overrides = [f"results_dir={home}", f"train.seed={seed}", f"dataset.train_dataset.seed={seed}"]
    if seed is not None:
        command = [sys.executable, "-m", "radioplat.cli", "quickstart", *overrides]
        subprocess.run(command, check=True, stdout=sys.stderr)
    seconds = {} if seed is None else {"seconds": time.monotonic() - begin}
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
        **seconds,
        "knn_teacher": teacher,
        "knn_start": rows[START]["knn"],
        "knn_fitted": rows[FITTED]["knn"],
        "knn_student": rows[STUDENT]["knn"],
        "knn_int8": rows[INT8]["knn"],
        "index_start": rows[START]["shared_index"],
        "index_fitted": rows[FITTED]["shared_index"],
        "index_student": rows[STUDENT]["shared_index"],
        "index_int8": rows[INT8]["shared_index"],
    }
    return {name: round(value, 4) for name, value in found.items()}


if __name__ == "__main__":
    main()
