"""A pretrained CNN cut to half of its multiply-accumulates, taught by what it was: how much does it keep?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.teach.programs import (
    FIGURE,
    TEACHERS,
    compared,
    distil,
    embedded,
    exported,
    radioplat,
    seconds_of,
    teacher,
)
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

STUDENT, MACS = "lite0", 0.5
SIDE, BATCH, PASS = 96, 32, 375  # 375 steps of 32 images: once through the 12,000 crops
STEPS = 3 * PASS  # less than ten minutes on two cores


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Prune the weights, train for each seed; compare kNN with the pruned student's and with the teacher's."""
    home, corpora = folder / "half", folder / "corpora"
    weights = teacher_weights(TEACHERS[STUDENT], folder / "weights")
    spec = _spec(corpora, weights)
    cut = home / "pruned"
    model = cut / "prune" / "model_pruned"
    if not model.exists():
        radioplat("prune", cut, {**spec, "prune": {"checkpoint": str(weights), "budget": {"macs": MACS}}})
    start = exported(cut, {**spec, "export": {"checkpoint": str(model)}})
    before = embedded(start.with_name("embeddings.npz"), corpora, start)
    card = ["--timm", TEACHERS[STUDENT], "--weights", weights, "--mean", *MEAN, "--std", *STD]
    whole = embedded(home / "teacher.npz", corpora, *card)
    students = [distil(home / f"seed_{seed}", _spec(corpora, weights, model, seed)) for seed in seeds]
    after = [embedded(onnx.with_name("embeddings.npz"), corpora, onnx) for onnx in students]
    gain, lost = (compared(after, [each] * len(after)) for each in (before, whole))
    now, then = gain["figures"][FIGURE]["value"], lost["against"][FIGURE]["value"]
    return {
        "half": {
            "pruned": gain["against"][FIGURE]["value"],
            "after": now,
            "teacher": then,
            "images": STEPS * BATCH,
            "seconds": [seconds_of(home / f"seed_{seed}") for seed in seeds],
            "over_pruned": gain["differences"],
            "over_teacher": lost["differences"],
        },
        "gain_over_start_lower_bound": gain["differences"][FIGURE]["lower"],
        "pruned_half_kept": now / then,
    }


def _spec(corpora: Path, weights: Path, pruned: Path | None = None, seed: int = 1) -> dict[str, Any]:
    """Return the spec: what a user must say."""
    source = {"root_dir": str(corpora / "train"), "samples_per_file": 500, "steps_per_epoch": PASS}
    start = {"pretrained_model_path": str(pruned)} if pruned is not None else {}
    return {
        "model": {"backbone": {"type": TEACHERS[STUDENT]}},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "train_dataset": {"tar_data_sources": [source], "seed": seed},
            "index_dir": str(corpora.parent / "index"),
        },
        "train": {"seed": seed, "max_steps": STEPS, "num_epochs": STEPS // PASS, **start},
        "distill": {"teacher": [teacher(STUDENT, weights, "combo")]},
        "cluster": {"mode": "local"},
    }
