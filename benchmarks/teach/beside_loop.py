"""The same student, teacher and images with a loop written by hand and with us, at equal images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.teach.beside_lightly import RATE, STEPS, ours_taught
from benchmarks.teach.programs import FIGURE, TEACHERS, compared, embedded, seconds_of, timed
from benchmarks.teach.scratch import BATCH, STUDENT, TEACHER
from radioplat.quickstart.weights import teacher_weights


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train with both programs and each seed; compare kNN with the loop at the better of two rates.

    Our runs are those of part ``lightly``.
    """
    ours = [ours_taught(folder, seed) for seed in seeds]
    loops = {
        name: [_loop(folder, seed, rate) for seed in seeds]
        for name, rate in (("loop_our_rate", RATE), ("loop_half_our_rate", RATE / 2))
    }
    beside = {name: compared(ours, theirs) for name, theirs in loops.items()}
    best = max(loops, key=lambda name: beside[name]["against"][FIGURE]["value"])
    found = beside[best]
    return {
        "beside_loop": {
            "ours": found["figures"][FIGURE]["value"],
            **{name: each["against"][FIGURE]["value"] for name, each in beside.items()},
            "images": STEPS * BATCH,
            "seconds": {
                name: [seconds_of(file.parent) for file in files] for name, files in {"ours": ours, **loops}.items()
            },
            f"over_{best}_equal_images": found["differences"],
        },
        "vs_loop_equal_images_lower_bound": found["differences"][FIGURE]["lower"],
    }


def _loop(folder: Path, seed: int, rate: float) -> Path:
    home, corpora = folder / "peers" / f"loop_{seed}_at_{rate:g}", folder / "corpora"
    weights, trained = teacher_weights(TEACHERS[TEACHER], folder / "weights"), home / "student.safetensors"
    if not trained.exists():
        options = ["--steps", STEPS, "--batch", BATCH, "--seed", seed, "--rate", rate]
        timed(home, ["-m", "benchmarks.teach.peer_loop", corpora / "train", weights, trained, *options])
    return embedded(home / "embeddings.npz", corpora, "--timm", STUDENT, "--weights", trained)
