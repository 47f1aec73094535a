"""Distillation of a DINO on generated composites (:mod:`benchmarks.composites`), in TAO's own fields; mAP elsewhere.

Every detector is trained by ``radioplat train`` or ``radioplat distill`` as a user would, on the same images, and
judged by ``radioplat evaluate``:

- ``teacher``: on an EfficientNet with ImageNet's weights, on the boxes, ``TEACHER_STEPS`` steps.
- ``labels alone``: the student, on a ResNet-10 without weights, ``STEPS`` steps.
- ``distilled``: the same student, start of the backbone, images, boxes and steps; beside the boxes it learns what the
  teacher gives its encoder, and its logits and boxes (``BINDINGS``), and it begins with the teacher's decoder.
- ``the decoder alone``, ``the bindings alone``: what of that is which.

Weights and steps were chosen on one run with the seed 1, of images that are none of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.detectors import ALONE, DISTILLED, SIDE, bindings_of, measured, students, task_map
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

TEACHER, STUDENT = "tf_efficientnet_lite0", "resnet10t"
IMAGES, BATCH = 600, 8
TEACHER_STEPS, STEPS = 300, 120
LR = 1e-3
MODEL = {  # TAO's names
    "num_feature_levels": 3,
    "hidden_dim": 64,
    "nheads": 4,
    "enc_layers": 1,
    "dec_layers": 2,
    "dim_feedforward": 128,
    "num_queries": 30,
    "dn_number": 10,
}
BINDINGS = bindings_of(("model.backbone.0.body", "L2", 2.0), ("pred_logits", "KL", 1.0), ("pred_boxes", "L1", 5.0))


def run(seed: int, folder: Path) -> dict[str, float]:
    """mAP of each detector on held-out images, in percent; what is below ``folder`` is not measured again."""
    home = folder / f"dino_{seed}"
    return measured(home, seed, IMAGES, lambda: _run(seed, home))


def gains(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """``dino_gain`` of each seed, in points of mAP."""
    return {"dino_gain": [run[DISTILLED] - run[ALONE] for run in runs]}


def _run(seed: int, home: Path) -> dict[str, float]:
    weights = {"pretrained_backbone_path": str(teacher_weights(TEACHER, home))}
    teacher = _spec(home, "teacher", {"backbone": TEACHER, **weights}, seed, TEACHER_STEPS)
    teacher["dataset"]["augmentation"] |= {"input_mean": list(MEAN), "input_std": list(STD)}
    found = {"teacher": task_map("train", teacher)}
    block = {"backbone": TEACHER, "pretrained_teacher_model_path": str(home / "teacher" / "train" / "model_latest")}
    return found | students(lambda name: _spec(home, name, {"backbone": STUDENT}, seed, STEPS), MODEL | block, BINDINGS)


def _spec(home: Path, name: str, model: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    sources = {
        split: {"image_dir": str(home / split / "images"), "json_file": str(home / split / "annotations.json")}
        for split in ("train", "val")
    }
    return {
        "results_dir": str(home / name),
        "model": MODEL | model,
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "workers": 1,
            "train_dataset": {"seed": seed},
            "augmentation": {"random_crop": {"scale_range": [0.6, 1.0]}},
            **{f"{split}_data_sources": [source] for split, source in sources.items()},
        },
        "train": {
            "seed": seed,
            "precision": "fp32",
            "max_steps": steps,
            "num_epochs": steps,  # as long as max_steps says, whatever an epoch is
            "validation_interval": 10 * steps,
            "checkpoint_interval": 50,
            "checkpoint_interval_unit": "step",
            "optim": {"lr": LR, "policy": "cosine"},
        },
        "cluster": {"mode": "local"},
    }
