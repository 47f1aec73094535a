"""The same student, teacher and images in three programs: ours, LightlyTrain and a loop written by hand.

At equal images each sees :data:`STEPS` batches; at equal time ours trains for as many steps as it has time for while
LightlyTrain does that, by the clock around each program, from its start to its end.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from benchmarks.lightly_environment import lightly_python
from benchmarks.teach.programs import FIGURE, TEACHERS, compared, distil, embedded, seconds_of, teacher, timed
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

STUDENT, TEACHER = "mobilenetv3_small_100", "lite0"
SIDE, BATCH = 96, 32
PASS = 375  # steps of 32 images, once through the 12,000 crops
PASSES = 2
STEPS = PASSES * PASS
PROGRAMS = Path(__file__).parent


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train with each program and seed; compare kNN."""
    corpora, home = folder / "corpora", folder / "peers"
    weights = teacher_weights(TEACHERS[TEACHER], folder / "weights")
    lightly = [_lightly(home, corpora, weights, seed) for seed in seeds]
    loops = [_loop(home, corpora, weights, seed) for seed in seeds]
    ours = [_ours(home / f"ours_{seed}", corpora, weights, seed, STEPS) for seed in seeds]
    longer = []
    for seed, peer in zip(seeds, lightly, strict=True):
        first = home / f"ours_{seed}"
        steps = int(STEPS * seconds_of(peer.parent) / seconds_of(first))
        longer.append(_ours(home / f"ours_{seed}_as_long", corpora, weights, seed, steps))
    images, time, by_hand = compared(ours, lightly), compared(longer, lightly), compared(ours, loops)
    return {
        "peers": {
            "ours": images["figures"][FIGURE]["value"],
            "ours_as_long": time["figures"][FIGURE]["value"],
            "lightly": images["against"][FIGURE]["value"],
            "loop": by_hand["against"][FIGURE]["value"],
            "images": STEPS * BATCH,
            "seconds": {
                name: [seconds_of(file.parent) for file in files]
                for name, files in {"ours": ours, "ours_as_long": longer, "lightly": lightly, "loop": loops}.items()
            },
            "over_lightly_equal_images": images["differences"],
            "over_lightly_equal_time": time["differences"],
            "over_loop_equal_images": by_hand["differences"],
        },
        "vs_lightly_equal_images_lower_bound": images["differences"][FIGURE]["lower"],
        "vs_lightly_equal_time_lower_bound": time["differences"][FIGURE]["lower"],
        "vs_loop_equal_images_lower_bound": by_hand["differences"][FIGURE]["lower"],
    }


def _ours(home: Path, corpora: Path, weights: Path, seed: int, steps: int) -> Path:
    """Train by the defaults; return the embeddings."""
    source = {"root_dir": str(corpora / "train"), "samples_per_file": 500, "steps_per_epoch": PASS}
    spec = {
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
    onnx = distil(home, spec)
    return embedded(home / "embeddings.npz", corpora, onnx)


def _lightly(folder: Path, corpora: Path, weights: Path, seed: int) -> Path:
    home, images = folder / f"lightly_{seed}", folder / "images"
    if not (home / "student.safetensors").exists():
        _unpack(corpora / "train", images)
        python = lightly_python()
        options = ["--epochs", PASSES, "--batch", BATCH, "--seed", seed]
        timed(home, [python, PROGRAMS / "peer_lightly.py", images, weights, home, *options])
    normal = ["--mean", *MEAN, "--std", *STD]
    return embedded(
        home / "embeddings.npz", corpora, "--timm", STUDENT, "--weights", home / "student.safetensors", *normal
    )


def _loop(folder: Path, corpora: Path, weights: Path, seed: int) -> Path:
    home = folder / f"loop_{seed}"
    trained = home / "student.safetensors"
    if not trained.exists():
        options = ["--steps", STEPS, "--batch", BATCH, "--seed", seed]
        timed(home, ["-m", "benchmarks.teach.peer_loop", corpora / "train", weights, trained, *options])
    return embedded(home / "embeddings.npz", corpora, "--timm", STUDENT, "--weights", trained)


def _unpack(shards: Path, images: Path) -> None:
    """Write the images of tar files as files."""
    if images.exists():
        return
    aside = images.with_name("images.partial")
    aside.mkdir(parents=True, exist_ok=True)
    for shard in sorted(shards.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    file = tar.extractfile(member)
                    assert file is not None
                    (aside / member.name).write_bytes(file.read())
    aside.rename(images)
