"""Distillation of an RT-DETR on generated composites (:mod:`benchmarks.composites`); mAP elsewhere.

Every detector is trained by ``radioplat train`` or ``radioplat distill`` as a user would, on the same images, and
judged by ``radioplat evaluate``:

- ``teacher``: an RT-DETRv2 on an EfficientNet with ImageNet's weights, on the boxes, ``TEACHER_STEPS`` steps.
- ``labels alone``: the student, on a ResNet-10 without weights, ``STEPS`` steps.
- ``distilled``: the same student, start of the backbone, images, boxes and steps; beside the boxes it learns the
  teacher's maps (``BINDINGS``), and it begins with the teacher's decoder.
- ``the decoder alone``, ``the bindings alone``: what of that is which.

Steps were chosen on one run with the seed 11, of images that are none of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.detectors import ALONE, DISTILLED, SIDE, bindings_of, measured, students, task_map
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

TEACHER, STUDENT = "tf_efficientnet_lite0", "resnet10t"
IMAGES, BATCH = 400, 8
TEACHER_STEPS, STEPS = 250, 160
LR = 1e-3
OPTIONS = {
    "d_model": 64,
    "encoder_hidden_dim": 64,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "decoder_layers": 2,
    "num_queries": 30,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_denoising": 20,
    "hidden_expansion": 0.5,
}
BINDINGS = bindings_of(
    ("srcs.1", "phi_s", 1.0), ("srcs.2", "phi_s", 1.0), ("memory.0", "IOU", 1.0), ("memory.1", "L2", 1.0)
)


def run(seed: int, folder: Path) -> dict[str, float]:
    """mAP of each detector on held-out images, in percent; what is below ``folder`` is not measured again."""
    home = folder / f"detection_{seed}"
    return measured(home, seed, IMAGES, lambda: _run(seed, home))


def gains(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """``rtdetr_gain`` of each seed, in points of mAP."""
    return {"rtdetr_gain": [run[DISTILLED] - run[ALONE] for run in runs]}


def _run(seed: int, home: Path) -> dict[str, float]:
    weights = {"pretrained_backbone_path": str(teacher_weights(TEACHER, home))}
    teacher = detector_spec(home, "teacher", {"type": TEACHER, **weights}, seed, TEACHER_STEPS)
    teacher["dataset"]["augmentation"] |= {"mean": list(MEAN), "std": list(STD)}
    found = {"teacher": task_map("train", teacher)}
    block = {"name": "teacher", "pretrained_teacher_model_path": str(home / "teacher" / "train" / "model_latest")}
    return found | students(lambda name: detector_spec(home, name, {"type": STUDENT}, seed, STEPS), block, BINDINGS)


def detector_spec(home: Path, name: str, backbone: dict[str, str], seed: int, steps: int) -> dict[str, Any]:
    """Of a run on the images below ``home``, with results in ``home / name``."""
    splits = {
        f"{split}_dataset": {"images_dir": str(home / split / "images"), "coco": str(home / split / "annotations.json")}
        for split in ("train", "val")
    }
    splits["train_dataset"]["seed"] = seed
    return {
        "results_dir": str(home / name),
        "model": {
            "task": "detection",
            "backbone": backbone,
            "detector": {"kind": "rtdetr_v2", "options": OPTIONS},
        },
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "workers": 1,
            "augmentation": {"random_crop": {"scale_range": [0.6, 1.0]}},
            **splits,
        },
        "train": {
            "seed": seed,
            "precision": "fp32",
            "max_steps": steps,
            "num_epochs": steps,
            "validation_interval": 10 * steps,
            "checkpoint_interval": 50,
            "checkpoint_interval_unit": "step",
            "optim": {"lr": LR, "policy": "cosine"},
        },
        "cluster": {"mode": "local"},
    }
