"""A student that begins as one of its teachers: does it keep what it knows while it learns from the other?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.teach_programs import FIGURE, compared, distil, embedded
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

TEACHERS = {"lite0": "tf_efficientnet_lite0", "lite2": "tf_efficientnet_lite2"}
STUDENT = "lite0"
LENGTHS = {"quickstart": 375, "ten_times": 3750}  # steps of 16 images
BATCH = 16


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train at each length and seed, and compare kNN with the student's at its start."""
    corpora = folder / "corpora"
    files = {name: teacher_weights(kind, folder / "weights") for name, kind in TEACHERS.items()}
    card = ["--timm", TEACHERS[STUDENT], "--weights", files[STUDENT], "--mean", *MEAN, "--std", *STD]
    start = embedded(folder / "start" / "before.npz", corpora, *card)
    found: dict[str, Any] = {}
    for length, steps in LENGTHS.items():
        students = []
        for seed in seeds:
            home = folder / "start" / f"{length}_seed_{seed}"
            onnx = distil(home, _spec(corpora, files, steps, seed))
            students.append(embedded(home / "embeddings.npz", corpora, onnx))
        judged = compared(students, [start] * len(students))
        found[f"start_as_teacher_{length}"] = {
            "before": judged["against"][FIGURE]["value"],
            "after": judged["figures"][FIGURE]["value"],
            **{figure: difference for figure, difference in judged["differences"].items()},
        }
    lower = [each[FIGURE]["lower"] for each in found.values()]
    return {**found, "start_as_teacher_lower_bound": min(lower)}


def _spec(corpora: Path, files: dict[str, Path], steps: int, seed: int) -> dict[str, Any]:
    """Return the spec: what a user must say, and nothing of how to train."""
    source = {"root_dir": str(corpora / "train"), "samples_per_file": 500, "steps_per_epoch": LENGTHS["quickstart"]}
    teachers = [
        {
            "name": name,
            "model": {"backbone": {"type": kind}},
            "pretrained_teacher_model_path": str(files[name]),
            "mode": "combo" if name == STUDENT else "spatial",
            "loss_type": "BALANCED",
            "summary_loss_type": "cosine",
            "norm_mean": list(MEAN),
            "norm_std": list(STD),
        }
        for name, kind in TEACHERS.items()
    ]
    return {
        "model": {"backbone": {"type": TEACHERS[STUDENT], "pretrained_backbone_path": str(files[STUDENT])}},
        "dataset": {
            "img_size": 96,
            "batch_size": BATCH,
            "train_dataset": {"tar_data_sources": [source], "seed": seed},
            "index_dir": str(corpora.parent / "index"),
        },
        "train": {"seed": seed, "max_steps": steps, "num_epochs": steps // LENGTHS["quickstart"]},
        "distill": {"teacher": teachers},
        "cluster": {"mode": "local"},
    }
