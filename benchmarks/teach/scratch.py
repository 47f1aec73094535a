"""A small CNN from random weights, taught for five minutes: how much more does it know than before?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.teach.programs import FIGURE, TEACHERS, compared, distil, embedded, seconds_of, teacher
from radioplat.quickstart.weights import teacher_weights

STUDENT, TEACHER = "mobilenetv3_small_100", "lite0"
SIDE, BATCH = 96, 32
PASS = 375  # steps of 32 images, once through the 12,000 crops
STEPS = 4 * PASS  # less than five minutes on two cores


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train for each seed; compare kNN with that of untrained networks of the same kind."""
    corpora = folder / "corpora"
    weights = teacher_weights(TEACHERS[TEACHER], folder / "weights")
    homes = [folder / "scratch" / f"seed_{seed}" for seed in seeds]
    before = [
        embedded(folder / "scratch" / f"untrained_{seed}.npz", corpora, "--timm", STUDENT, "--seed", seed)
        for seed in seeds
    ]
    students = [distil(home, spec_of(corpora, weights, seed, STEPS)) for home, seed in zip(homes, seeds, strict=True)]
    judged = compared([embedded(onnx.with_name("embeddings.npz"), corpora, onnx) for onnx in students], before)
    return {
        "scratch": {
            "before": judged["against"][FIGURE]["value"],
            "after": judged["figures"][FIGURE]["value"],
            "images": STEPS * BATCH,
            "seconds": [seconds_of(home) for home in homes],
            "mega_macs": _macs() / 1e6,
            **judged["differences"],
        },
        "scratch_gain": judged["differences"][FIGURE]["difference"],
    }


def spec_of(corpora: Path, weights: Path, seed: int, steps: int) -> dict[str, Any]:
    """Return the spec: what a user must say."""
    source = {"root_dir": str(corpora / "train"), "samples_per_file": 500, "steps_per_epoch": PASS}
    return {
        "model": {"backbone": {"type": STUDENT}},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "train_dataset": {"tar_data_sources": [source], "seed": seed},
            "index_dir": str(corpora.parent / "index"),
        },
        "train": {"seed": seed, "max_steps": steps, "num_epochs": -(-steps // PASS)},
        "distill": {"teacher": [teacher(TEACHER, weights, "combo")]},
        "cluster": {"mode": "local"},
    }


def _macs() -> int:
    """Return the student's multiply-accumulates for one image."""
    model = timm.create_model(STUDENT, num_classes=0).eval()
    with FlopCounterMode(display=False) as count, torch.inference_mode():
        model(torch.zeros(1, 3, SIDE, SIDE))
    return count.get_total_flops() // 2
