"""How often does a step wait for the device? Counted on a CPU by a program that imports nothing of radioplat.

``python -m benchmarks.host_reads``: `benchmarks.judges.host_reads` runs ``radioplat distill`` for small students (a
RADIO ViT, a CNN with BatchNorm) with two teachers, four micro-batches a step, and counts what would wait for a GPU:
with DeepSpeed, and the ViT with ``ddp``, also with running statistics of the targets, and with exact sums. Teachers run
in the same process, without a feature cache. Reads of numbers that are on the host with a GPU, too, count as well: the
step counts of torch's optimizers, and the quanta of exact sums.

The last line on stdout is one JSON object with, for each case, ``reads_a_step`` (of radioplat),
``reads_a_micro_batch``, ``reads_a_step_of_others`` (DeepSpeed, torch) and their places.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

SIDE, BATCH, MICRO_BATCHES, STEPS, IMAGES = 64, 4, 4, 10, 64
VIT = {"type": "radio_vit_tiny_patch16", "kwargs": {"depth": 2}, "cpe_max_size": SIDE}
CNN = {"type": "test_resnet"}
RUNNING = {"target_norm": {"type": "phi_s", "fit": "running", "refresh_steps": 2}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the student, and changes of the spec's sections
    "vit": (VIT, {}),
    "cnn": (CNN, {}),
    "vit, ddp": (VIT, {"train": {"engine": "ddp"}}),
    "vit, ddp, running statistics": (VIT, {"train": {"engine": "ddp"}, "distill": RUNNING}),
    "vit, ddp, exact": (VIT, {"train": {"engine": "ddp", "reduction": "exact", "threads": 1}}),
}


def main() -> None:
    """Count for each case, and print the figures."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        write_images(folder / "images")
        for number, (name, (student, changes)) in enumerate(CASES.items()):
            tree = spec_of(folder, str(number), student)
            for section, fields in changes.items():
                tree[section] |= fields
            spec = folder / f"{number}.json"
            spec.write_text(json.dumps(tree), encoding="utf-8")
            command = [
                sys.executable,
                "-m",
                "benchmarks.judges.host_reads",
                "radioplat.cli.main:main",
                "distill",
                "-e",
                str(spec),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            counted = json.loads(done.stdout.strip().splitlines()[-1])
            counted["reads_a_micro_batch"] = round(counted["reads_a_step"] / counted["micro_batches_a_step"], 3)
            found[name] = counted
    print(json.dumps(found))


def write_images(folder: Path) -> None:
    """Write a shard of :data:`IMAGES` small JPEGs of noise into the new ``folder``."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    with tarfile.open(folder / "0.tar", "w") as tar:
        for number in range(IMAGES):
            content = io.BytesIO()
            Image.fromarray(generator.integers(0, 256, (96, 96, 3), np.uint8)).save(content, "JPEG")
            member = tarfile.TarInfo(f"{number:04d}.jpg")
            member.size = len(content.getvalue())
            tar.addfile(member, io.BytesIO(content.getvalue()))


def spec_of(folder: Path, name: str, student: dict[str, Any]) -> dict[str, Any]:
    """Return a run's spec, in the folder ``results_<name>``: a ``student`` and two teachers on the written images."""
    teachers = []
    for teacher, kind in (("a", "test_resnet"), ("b", "test_vit")):
        torch.manual_seed(0)
        kwargs = {"img_size": SIDE} if kind == "test_vit" else {}
        weights = folder / f"{teacher}.safetensors"
        save_file(timm.create_model(kind, num_classes=0, **kwargs).state_dict(), weights)
        backbone = {"type": kind, **({"kwargs": kwargs} if kwargs else {})}
        mode = "combo" if teacher == "a" else "spatial"
        teachers.append(
            {
                "name": teacher,
                "model": {"backbone": backbone},
                "mode": mode,
                "pretrained_teacher_model_path": str(weights),
                "norm_mean": [0.5, 0.5, 0.5],
                "norm_std": [0.5, 0.5, 0.5],
            }
        )
    source = {"root_dir": str(folder / "images"), "steps_per_epoch": STEPS}
    return {
        "results_dir": str(folder / f"results_{name}"),
        "model": {"backbone": student},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "workers": 1,
            "train_dataset": {"tar_data_sources": [source]},
        },
        "train": {"global_batch_size": BATCH * MICRO_BATCHES, "num_epochs": 1, "max_steps": STEPS},
        "distill": {"teacher": teachers},
        "feature_cache": {"enabled": False},
        "cluster": {"mode": "local"},
    }


if __name__ == "__main__":
    main()
