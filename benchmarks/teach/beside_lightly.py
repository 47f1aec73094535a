"""The same student, teacher and images with LightlyTrain and with us, at equal images and at equal time.

LightlyTrain scales its rate for its usual 1,536 images a step down to 7e-5 for 32, which is little for so short a run:
it is run with its defaults, with the rate that ours takes by default, and with half of that. Ours is compared with the
best of the three. At equal time ours trains for as many steps as it has time for while that trains, by the clock around
both.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from benchmarks.lightly_environment import lightly_python
from benchmarks.teach.programs import FIGURE, TEACHERS, compared, distil, embedded, seconds_of, timed
from benchmarks.teach.scratch import BATCH, PASS, STUDENT, TEACHER, spec_of
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

PASSES = 2
STEPS = PASSES * PASS
RATE = 6e-3  # of ours, for a CNN from random weights
PROGRAM = Path(__file__).with_name("peer_lightly.py")


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train with both programs and each seed; compare kNN."""
    home = folder / "peers"
    lightly = {
        name: [_lightly(folder, seed, rate) for seed in seeds]
        for name, rate in (("lightly_defaults", None), ("lightly_our_rate", RATE), ("lightly_half_our_rate", RATE / 2))
    }
    ours = [ours_taught(folder, seed) for seed in seeds]
    beside = {name: compared(ours, theirs) for name, theirs in lightly.items()}
    best = max(lightly, key=lambda name: beside[name]["against"][FIGURE]["value"])
    longer = []
    for seed, peer in zip(seeds, lightly[best], strict=True):
        steps = int(STEPS * seconds_of(peer.parent) / seconds_of(home / f"ours_{seed}"))
        longer.append(ours_taught(folder, seed, steps))
    images, time = beside[best], compared(longer, lightly[best])
    return {
        "beside_lightly": {
            "ours": images["figures"][FIGURE]["value"],
            "ours_as_long": time["figures"][FIGURE]["value"],
            **{name: found["against"][FIGURE]["value"] for name, found in beside.items()},
            "images": STEPS * BATCH,
            "seconds": {
                name: [seconds_of(file.parent) for file in files]
                for name, files in {"ours": ours, "ours_as_long": longer, **lightly}.items()
            },
            **{f"over_{name}_equal_images": found["differences"] for name, found in beside.items()},
            f"over_{best}_equal_time": time["differences"],
        },
        "vs_lightly_equal_images_lower_bound": images["differences"][FIGURE]["lower"],
        "vs_lightly_equal_time_lower_bound": time["differences"][FIGURE]["lower"],
    }


def ours_taught(folder: Path, seed: int, steps: int | None = None) -> Path:
    """Train by the defaults, for :data:`STEPS` steps unless told otherwise; return the embeddings."""
    corpora, weights = folder / "corpora", teacher_weights(TEACHERS[TEACHER], folder / "weights")
    home = folder / "peers" / (f"ours_{seed}" if steps is None else f"ours_{seed}_as_long")
    steps = steps or STEPS
    onnx = distil(home, spec_of(corpora, weights, seed, steps))
    return embedded(home / "embeddings.npz", corpora, onnx)


def _lightly(folder: Path, seed: int, rate: float | None) -> Path:
    home = folder / "peers" / f"lightly_{seed}{'' if rate is None else f'_at_{rate:g}'}"
    corpora, images = folder / "corpora", folder / "peers" / "images"
    weights = teacher_weights(TEACHERS[TEACHER], folder / "weights")
    trained = home / "student.safetensors"
    if not trained.exists():
        _unpack(corpora / "train", images)
        options = ["--epochs", PASSES, "--batch", BATCH, "--seed", seed]
        options += [] if rate is None else ["--rate", rate]
        timed(home, [lightly_python(), PROGRAM, images, weights, home, *options])
    normal = ["--mean", *MEAN, "--std", *STD]
    return embedded(home / "embeddings.npz", corpora, "--timm", STUDENT, "--weights", trained, *normal)


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
