"""Distillation for classification on scikit-learn's handwritten digits: few labels, more images without one.

Of each seed's own split 30 % are held out for the figures. Of the rest ``LABELS`` images a digit keep their label, in a
folder a class; the others lie in shards without labels. Every network is trained by ``radioplat train`` or ``radioplat
distill`` as a user would, on 32 x 32 pixels, and judged by ``radioplat evaluate`` (top-1 of its own classifier):

- ``teacher``: a larger network, on the labels.
- ``labels alone``: the student on the labels, ``STEPS`` steps.
- ``distilled, labelled images``: the same student, start, labels and steps, and the teacher's class scores.
- ``distilled``: the same, with images without a label among them.

The student's learning rate is the best for labels alone, of five, on the seeds 11 and 12; what is said of distillation
was not tuned. ``python -m benchmarks.tasks_classification FOLDER [SEED]`` writes the images alone, for
``specs/classification.yaml``.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import radioplat
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tracking.results import write_atomic

ALONE, LABELLED, DISTILLED = "labels alone", "distilled, labelled images", "distilled"
TEACHER, STUDENT = "resnet10t", "test_efficientnet"
LABELS, SIDE, BATCH = 4, 32, 32
TEACHER_STEPS, STEPS = 200, 300
TEACHER_LR, LR = 2e-3, 4e-3
DISTILL = {"alpha": 0.1, "loss_lambda": 1.0, "kl_form": "hinton", "temperature": 2.0}
QUIET = {  # digits are no photographs: a mirrored 3 is none, and a quarter of an image is no digit
    "random_flip": {"enable": False},
    "random_crop": {"enable": True, "scale_range": [0.7, 1.0], "ratio_range": [0.9, 1.1]},
}


def run(seed: int, folder: Path) -> dict[str, float]:
    """Top-1 of each network on held-out images, in percent; what is below ``folder`` is not measured again."""
    home = folder / f"classification_{seed}"
    done = home / "figures.json"
    if done.exists():
        return json.loads(done.read_text())
    images = make_images(home / "images", seed)
    common = {"images_dir": str(images / "labelled")}
    mixed = {"images_dir": str(images / "labelled"), "tar_data_sources": [_loose(images)]}
    runs = {
        "teacher": ("train", _spec(home / "teacher", TEACHER, images, common, seed, TEACHER_STEPS, TEACHER_LR)),
        ALONE: ("train", _spec(home / "alone", STUDENT, images, common, seed, STEPS, LR)),
        LABELLED: ("distill", _spec(home / "labelled", STUDENT, images, common, seed, STEPS, LR)),
        DISTILLED: ("distill", _spec(home / "distilled", STUDENT, images, mixed, seed, STEPS, LR)),
    }
    weights = str(home / "teacher" / "train" / "model_latest")
    found = {}
    for name, (task, spec) in runs.items():
        if task == "distill":
            teacher = {"name": "teacher", "mode": "logits", "loss_type": "KL", "pretrained_teacher_model_path": weights}
            spec["distill"] = {**DISTILL, "teacher": [teacher]}
        result = getattr(radioplat, task)(spec, say=lambda line: None)
        judged = load_spec(spec, (f"evaluate.checkpoint={result.checkpoint}",))
        found[name] = 100 * (evaluate(judged).accuracy or 0.0)
    write_atomic(done, json.dumps(found, indent=1))
    return found


def gains(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """``cls_gain`` of each seed, in percentage points."""
    return {"cls_gain": [run[DISTILLED] - run[ALONE] for run in runs]}


def make_images(root: Path, seed: int) -> Path:
    """``labelled`` and ``held_out`` with a folder a digit, and ``loose`` with a shard without labels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    rows = np.arange(len(digits.target))
    train, test = train_test_split(rows, test_size=0.3, stratify=digits.target, random_state=seed)
    seen = dict.fromkeys(range(10), 0)
    (root / "loose").mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / "loose" / "digits.tar", "w") as tar:
        for row in np.random.default_rng(seed).permutation(train):
            digit = int(digits.target[row])
            seen[digit] += 1
            if seen[digit] <= LABELS:
                _write(root / "labelled" / f"digit_{digit}" / f"{row:04d}.png", digits.images[row])
            else:
                data = _png(digits.images[row])
                member = tarfile.TarInfo(f"{row:04d}.png")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    for row in test:
        _write(root / "held_out" / f"digit_{digits.target[row]}" / f"{row:04d}.png", digits.images[row])
    return root


def _png(pixels: np.ndarray) -> bytes:
    """8 x 8 values of 0 to 16, enlarged."""
    image = Image.fromarray(np.round(pixels * (255 / 16)).astype(np.uint8))
    buffer = io.BytesIO()
    image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def _write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_png(pixels))


def _loose(images: Path) -> dict[str, Any]:
    """Seven images without a label for one with: about as many as there are of each."""
    return {"root_dir": str(images / "loose"), "scale_factor": 7.0, "steps_per_epoch": 1}


def _spec(
    home: Path, backbone: str, images: Path, train: dict[str, Any], seed: int, steps: int, lr: float
) -> dict[str, Any]:
    return {
        "results_dir": str(home),
        "model": {"backbone": {"type": backbone}},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "workers": 1,
            "num_classes": 10,
            "augmentation": QUIET,
            "train_dataset": {**train, "seed": seed},
            "val_dataset": {"images_dir": str(images / "held_out")},
        },
        "train": {
            "seed": seed,
            "precision": "fp32",
            "global_batch_size": BATCH,
            "max_steps": steps,
            "num_epochs": steps,  # as long as max_steps says, whatever an epoch is
            "validation_interval": 10 * steps,
            "checkpoint_interval": 10 * steps,
            "optim": {"lr": lr, "policy": "cosine", "weight_decay": 0.02},
        },
        "evaluate": {"baseline": False, "pictures": 0},
        "cluster": {"mode": "local"},
    }


if __name__ == "__main__":
    make_images(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
