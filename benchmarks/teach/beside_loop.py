"""The same student, teacher and images with a loop written by hand and with us, at equal images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.teach.beside_lightly import STEPS, ours_taught
from benchmarks.teach.programs import FIGURE, TEACHERS, compared, embedded, seconds_of, timed
from benchmarks.teach.scratch import BATCH, STUDENT, TEACHER
from radioplat.quickstart.weights import teacher_weights


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train with both programs and each seed; compare kNN. Our runs are those of part ``lightly``."""
    loops, ours = ([train(folder, seed) for seed in seeds] for train in (_loop, ours_taught))
    found = compared(ours, loops)
    return {
        "beside_loop": {
            "ours": found["figures"][FIGURE]["value"],
            "loop": found["against"][FIGURE]["value"],
            "images": STEPS * BATCH,
            "seconds": {
                name: [seconds_of(file.parent) for file in files]
                for name, files in {"ours": ours, "loop": loops}.items()
            },
            "over_loop_equal_images": found["differences"],
        },
        "vs_loop_equal_images_lower_bound": found["differences"][FIGURE]["lower"],
    }


def _loop(folder: Path, seed: int) -> Path:
    home, corpora = folder / "peers" / f"loop_{seed}", folder / "corpora"
    weights, trained = teacher_weights(TEACHERS[TEACHER], folder / "weights"), home / "student.safetensors"
    if not trained.exists():
        options = ["--steps", STEPS, "--batch", BATCH, "--seed", seed]
        timed(home, ["-m", "benchmarks.teach.peer_loop", corpora / "train", weights, trained, *options])
    return embedded(home / "embeddings.npz", corpora, "--timm", STUDENT, "--weights", trained)
