"""A student that begins as one of its teachers: does it keep what it knows while it learns from the other?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.teach.programs import FIGURE, TEACHERS, compared, distil, embedded, last_line, teacher
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

STUDENT, SECOND = "lite0", "lite2"
LENGTHS = {"quickstart": 375, "ten_times": 3750}  # steps of 16 images
BATCH = 16


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train at each length and seed; compare kNN with that at the start, and heads with those on a frozen backbone."""
    corpora = folder / "corpora"
    files = {name: teacher_weights(kind, folder / "weights") for name, kind in TEACHERS.items()}
    cards = {
        name: ["--timm", kind, "--weights", files[name], "--mean", *MEAN, "--std", *STD]
        for name, kind in TEACHERS.items()
    }
    before = embedded(folder / "start" / "before.npz", corpora, *cards[STUDENT])
    found: dict[str, Any] = {}
    for length, steps in LENGTHS.items():
        students, frozen = (
            [
                distil(folder / "start" / f"{length}{name}_seed_{seed}", _spec(corpora, files, steps, seed, freeze))
                for seed in seeds
            ]
            for name, freeze in (("", False), ("_frozen", True))
        )
        after = [embedded(onnx.with_name("embeddings.npz"), corpora, onnx) for onnx in students]
        judged = compared(after, [before] * len(after))
        second = ["--head", SECOND, *cards[SECOND], "--corpora", corpora]
        found[f"start_as_teacher_{length}"] = {
            "before": judged["against"][FIGURE]["value"],
            "after": judged["figures"][FIGURE]["value"],
            **judged["differences"],
            "second_teacher": last_line("benchmarks.judges.fidelity", *students, *second, "--against", *frozen),
        }
    return {
        **found,
        "start_as_teacher_lower_bound": min(each[FIGURE]["lower"] for each in found.values()),
        "second_teacher_fidelity_gain": min(each["second_teacher"]["difference"]["lower"] for each in found.values()),
    }


def _spec(corpora: Path, files: dict[str, Path], steps: int, seed: int, freeze: bool) -> dict[str, Any]:
    """Return the spec: what a user must say, and nothing of how to train but for ``freeze``, of the backbone."""
    source = {"root_dir": str(corpora / "train"), "samples_per_file": 500, "steps_per_epoch": LENGTHS["quickstart"]}
    teachers = [teacher(name, path, "combo" if name == STUDENT else "spatial") for name, path in files.items()]
    student = {"type": TEACHERS[STUDENT], "pretrained_backbone_path": str(files[STUDENT]), "freeze_backbone": freeze}
    return {
        "model": {"backbone": student},
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
