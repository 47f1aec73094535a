"""Distillation of an RT-DETR on generated composites (:mod:`benchmarks.composites`); mAP elsewhere.

Every detector is trained by ``radioplat train`` or ``radioplat distill`` as a user would, on the same images, and
judged by ``radioplat evaluate``:

- ``teacher``: an RT-DETRv2 on an EfficientNet with ImageNet's weights, on the boxes, ``TEACHER_STEPS`` steps.
- ``labels alone``: the student, on a ResNet-10 without weights, ``STEPS`` steps.
- ``distilled``: the same student, start of the backbone, images, boxes and steps; beside the boxes it learns the
  teacher's maps (``BINDINGS``), and it begins with the teacher's decoder.

Steps were chosen on one run with the seed 11, of images that are none of these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import radioplat
from benchmarks.composites import write_set
from radioplat.evaluate.run import evaluate
from radioplat.quickstart.weights import MEAN, STD, teacher_weights
from radioplat.spec.load import load_spec
from radioplat.track.results import write_atomic

ALONE, DISTILLED = "labels alone", "distilled"
TEACHER, STUDENT = "tf_efficientnet_lite0", "resnet10t"
IMAGES, HELD_OUT, SIDE, BATCH = 400, 150, 64, 8
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
BINDINGS = [
    {"teacher_module_name": name, "student_module_name": name, "criterion": loss, "weight": 1.0}
    for name, loss in (("srcs.1", "phi_s"), ("srcs.2", "phi_s"), ("memory.0", "IOU"), ("memory.1", "L2"))
]


def run(seed: int, folder: Path) -> dict[str, float]:
    """mAP of each detector on held-out images, in percent; what is below ``folder`` is not measured again."""
    home = folder / f"detection_{seed}"
    done = home / "figures.json"
    if done.exists():
        return json.loads(done.read_text())
    for name, count in (("train", IMAGES), ("val", HELD_OUT)):
        if not (home / name / "annotations.json").exists():
            write_set(home / name, count, name == "val", SIDE, seed)
    weights = {"pretrained_backbone_path": str(teacher_weights(TEACHER, home))}
    teacher = detector_spec(home, "teacher", {"type": TEACHER, **weights}, seed, TEACHER_STEPS)
    teacher["dataset"]["augmentation"] |= {"mean": list(MEAN), "std": list(STD)}
    found = {"teacher": _map("train", teacher)}
    found[ALONE] = _map("train", detector_spec(home, "alone", {"type": STUDENT}, seed, STEPS))
    distilled = detector_spec(home, "distilled", {"type": STUDENT}, seed, STEPS)
    block = {"name": "teacher", "pretrained_teacher_model_path": str(home / "teacher" / "train" / "model_latest")}
    distilled["distill"] = {"teacher": [block], "bindings": BINDINGS, "decoder_from_teacher": True}
    found[DISTILLED] = _map("distill", distilled)
    write_atomic(done, json.dumps(found, indent=1))
    return found


def gains(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """``rtdetr_gain`` of each seed, in points of mAP."""
    return {"rtdetr_gain": [run[DISTILLED] - run[ALONE] for run in runs]}


def _map(task: str, spec: dict[str, Any]) -> float:
    result = getattr(radioplat, task)(spec, say=lambda line: None)
    judged = evaluate(load_spec(spec, (f"evaluate.checkpoint={result.checkpoint}",)))
    return 100 * judged.result.kpi().get("mAP", 0.0)


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
