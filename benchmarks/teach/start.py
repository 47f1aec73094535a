"""A student that begins as one of its teachers: does it keep what it knows while it learns from the other?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.teach.programs import FIGURE, TEACHERS, compared, distil, embedded, last_line, seconds_of, teacher
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

STUDENT, SECOND = "lite0", "lite2"
LENGTHS = {"quickstart": 375, "ten_times": 3750}  # steps of 16 images
BATCH = 16


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train at the quickstart's length."""
    return _figures(folder, seeds, ["quickstart"])


def run_long(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train at both lengths; the bounds are the lower of both."""
    return _figures(folder, seeds, list(LENGTHS))


def _figures(folder: Path, seeds: list[int], lengths: list[str]) -> dict[str, Any]:
    found = {length: _length(folder, length, seeds) for length in lengths}
    return {
        **{f"start_as_teacher_{length}": figures for length, figures in found.items()},
        "start_as_teacher_lower_bound": min(each[FIGURE]["lower"] for each in found.values()),
        "second_teacher_fidelity_gain": min(each["second_teacher"]["difference"]["lower"] for each in found.values()),
    }


def student(folder: Path, length: str, seed: int, frozen: bool = False) -> Path:
    """Train at one of :data:`LENGTHS` unless that is done; return the ONNX file with heads."""
    home = folder / "start" / f"{length}{'_frozen' if frozen else ''}_seed_{seed}"
    return distil(home, spec(folder, length, seed, frozen))


def second(folder: Path) -> list[object]:
    """Return the judge's arguments for the second teacher."""
    return ["--head", SECOND, *_card(folder, SECOND), "--corpora", folder / "corpora"]


def spec(folder: Path, length: str, seed: int, frozen: bool = False) -> dict[str, Any]:
    """Return the spec: what a user must say, and nothing of how to train but for ``frozen``, of the backbone."""
    corpora, steps, a_pass = folder / "corpora", LENGTHS[length], LENGTHS["quickstart"]
    source = {"root_dir": str(corpora / "train"), "samples_per_file": 500, "steps_per_epoch": a_pass}
    files = {name: _weights(folder, name) for name in TEACHERS}
    teachers = [teacher(name, path, "combo" if name == STUDENT else "spatial") for name, path in files.items()]
    backbone = {"type": TEACHERS[STUDENT], "pretrained_backbone_path": str(files[STUDENT]), "freeze_backbone": frozen}
    saved = {"checkpoint_interval": steps // 15, "checkpoint_interval_unit": "step"}
    return {
        "model": {"backbone": backbone},
        "dataset": {
            "img_size": 96,
            "batch_size": BATCH,
            "train_dataset": {"tar_data_sources": [source], "seed": seed},
            "index_dir": str(folder / "index"),
        },
        "train": {"seed": seed, "max_steps": steps, "num_epochs": steps // a_pass, **saved},
        "distill": {"teacher": teachers},
        "cluster": {"mode": "local"},
    }


def _length(folder: Path, length: str, seeds: list[int]) -> dict[str, Any]:
    """Compare kNN with that at the start, and the second teacher's head with one on a frozen backbone."""
    corpora = folder / "corpora"
    before = embedded(folder / "start" / "before.npz", corpora, *_card(folder, STUDENT))
    students, frozen = ([student(folder, length, seed, still) for seed in seeds] for still in (False, True))
    after = [embedded(onnx.with_name("embeddings.npz"), corpora, onnx) for onnx in students]
    judged = compared(after, [before] * len(after))
    return {
        "before": judged["against"][FIGURE]["value"],
        "after": judged["figures"][FIGURE]["value"],
        "seconds": [seconds_of(onnx.parent) for onnx in students],
        **judged["differences"],
        "second_teacher": last_line("benchmarks.judges.fidelity", *students, *second(folder), "--against", *frozen),
    }


def _weights(folder: Path, name: str) -> Path:
    return teacher_weights(TEACHERS[name], folder / "weights")


def _card(folder: Path, name: str) -> list[object]:
    return ["--timm", TEACHERS[name], "--weights", _weights(folder, name), "--mean", *MEAN, "--std", *STD]
