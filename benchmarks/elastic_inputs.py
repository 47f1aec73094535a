"""A run small enough to be beaten on a laptop: crops of bundled photographs, a seeded ViT that teaches a tiny one."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import skimage
import torch
from PIL import Image

from radioplat.models.backbones.timm_backbone import TimmBackbone

PHOTOGRAPHS = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg")
SIZE, MICRO_BATCHES = 64, 6  # six micro-batches a step divide among one, two and three workers


def make_inputs(folder: Path, images: int = 96, shards: int = 3) -> None:
    """Shards and a teacher below ``folder``, unless they are there; the same each time."""
    if (folder / "teacher.safetensors").exists():
        return
    rng, pictures = np.random.default_rng(0), []
    for name in PHOTOGRAPHS:
        with Image.open(Path(skimage.__file__).parent / "data" / name) as image:
            pictures.append(np.asarray(image.convert("RGB")))
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / "shards" / f"{shard:03d}.tar", "w") as tar:
            for number in range(shard, images, shards):
                picture = pictures[number % len(pictures)]
                y, x = (int(rng.integers(0, limit - 80)) for limit in picture.shape[:2])
                data = io.BytesIO()
                Image.fromarray(picture[y : y + 80, x : x + 80]).save(data, "JPEG", quality=95)
                info = tarfile.TarInfo(f"{number:04d}.jpg")
                info.size = data.tell()
                data.seek(0)
                tar.addfile(info, data)
    torch.manual_seed(0)
    teacher = TimmBackbone("test_vit", num_classes=0, img_size=SIZE).model.state_dict()
    safetensors.torch.save_file(teacher, folder / "teacher.safetensors")


def tiny_spec(inputs: Path, results: Path, steps: int, workers: tuple[int, int], **train: Any) -> dict[str, Any]:
    """A spec: fp32, ZeRO-1, a checkpoint every tenth step, a teacher of half a CPU in an actor of its own.

    Args:
        workers: fewest and most.
        train: further fields of section ``train``.
    """
    return {
        "results_dir": str(results),
        "model": {
            "backbone": {
                "type": "c_radio_v3_vit_base_patch16_reg4_dinov2",
                "kwargs": {"embed_dim": 48, "depth": 2, "num_heads": 3},
            }
        },
        "dataset": {
            "img_size": SIZE,
            "batch_size": 2,
            "workers": 1,
            "augmentation": {"views_per_image": 0},  # teachers are asked to the end
            "train_dataset": {"tar_data_sources": [{"root_dir": str(inputs / "shards"), "steps_per_epoch": steps}]},
        },
        "train": {
            "global_batch_size": 2 * MICRO_BATCHES,
            "min_workers": workers[0],
            "max_workers": workers[1],
            "num_epochs": 1,
            "checkpoint_interval": 10,
            "checkpoint_interval_unit": "step",
            "precision": "fp32",
            "zero_stage": 1,
            "max_failures": 3,
            "resize_interval_s": 3.0,
            "optim": {"lr": 1e-3, "policy": "cosine"},
            **train,
        },
        "distill": {
            "loss_type": "BALANCED",
            "loss_lambda": 1.0,
            "mlp_hidden_size": 32,
            "teacher": [
                {
                    "name": "vit",
                    "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": SIZE}}},
                    "pretrained_teacher_model_path": str(inputs / "teacher.safetensors"),
                    "mode": "combo",
                    "summary_loss_type": "cosine",
                }
            ],
        },
        "teachers": {"vit": {"num_cpus": 0.5}},
        "cluster": {"mode": "ray", "cpus_per_worker": 0.5, "cpus_per_decode": 0.5},
    }


def losses_of(folder: Path) -> dict[int, float]:
    """The loss of each step from ``status.json``, as last written: of the attempt that led to the end."""
    found = {}
    for line in (folder / "status.json").read_text().splitlines():
        record = json.loads(line)
        if "max_step" in record and "loss" in record["kpi"]:
            found[record["step"]] = record["kpi"]["loss"]
    return found
