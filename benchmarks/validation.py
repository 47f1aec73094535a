"""Seconds of a validation of one student, by number of ranks, and of COCO's and VOC's AP at the size of COCO-val.

    python -m benchmarks.validation [--images 512] [--ranks 1 2] [--backbone vit_small_patch16_224] [--folder DIR]

Each rank is a process with one thread, on the GPU of its number if there is one, else on the CPU. Images are pieces of
scikit-image's photographs, as training images and as held-out images. Prints a JSON line for each number of ranks:
``seconds`` from the first to the last rank, ``cpu_seconds`` of each rank, and the figures; and one for AP of synthetic
boxes, 5,000 images of 80 classes with 100 detections each, of which each rank computes its share of the classes.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import skimage.data
import torch
import torch.distributed as dist
import torch.multiprocessing
from PIL import Image

from radioplat.common.ranks import Ranks
from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.design.tasks.registry import TASKS
from radioplat.evaluation.detection.coco import coco_metrics
from radioplat.evaluation.detection.voc import voc_ap
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec

SCENES = (skimage.data.astronaut, skimage.data.chelsea, skimage.data.coffee, skimage.data.rocket)


def main() -> None:
    """Make the images and the student, then measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--backbone", default="vit_small_patch16_224")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ap-images", type=int, default=5000)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="validation-"))
    if not (folder / "student").exists():
        _write(folder, options.images, options.backbone)
    for count in options.ranks:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        torch.multiprocessing.spawn(_rank, (count, port, folder, options.backbone, options.ap_images), count)


def _write(folder: Path, images: int, backbone: str) -> None:
    for seed, split in enumerate(("train", "val")):
        rng = np.random.default_rng(seed)
        for number in range(images):
            picture = SCENES[number % len(SCENES)]()
            y, x = (int(rng.integers(0, limit - 256)) for limit in picture.shape[:2])
            path = folder / split / str(number % len(SCENES)) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture[y : y + 256, x : x + 256]).save(path)
    student = Student(StudentArchitecture(backbone, num_classes=len(SCENES)))
    (folder / "student").mkdir()
    save_student(student, student.state_dict(), folder / "student")


def _rank(rank: int, count: int, port: int, folder: Path, backbone: str, ap_images: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    ranks = Ranks(rank, count, device)
    dataset = {f"{split}_dataset": {"images_dir": str(folder / split)} for split in ("train", "val")}
    tree = {
        "results_dir": str(folder / "results"),
        "model": {"backbone": {"type": backbone}},
        "dataset": {"img_size": 224, "batch_size": 32, "workers": 1, "knn_validation": True, **dataset},
        "train": {"precision": "bf16"},
    }
    architecture = StudentArchitecture(backbone, num_classes=len(SCENES))
    run = SimpleNamespace(
        spec=load_spec(tree), architecture=architecture, teachers=[], folder=folder, feature_cache=None
    )
    truth, detections = _boxes(ap_images)
    for warm in (True, False):  # the first makes the index
        begin, cpu = _begin()
        kpi = TASKS["classify"].validate(run, folder / "student", ranks).kpi
        _report({"ranks": count, "device": device.type, "warm": not warm, **kpi}, ranks, begin, cpu)
    if truth:
        begin, cpu = _begin()
        coco_metrics(truth, detections, 80, ranks)
        voc_ap(truth, detections, 80, ranks=ranks)
        _report({"ranks": count, "ap_images": len(truth), "classes": 80}, ranks, begin, cpu)
    dist.destroy_process_group()


def _begin() -> tuple[float, float]:
    dist.barrier()
    return time.perf_counter(), time.process_time()


def _report(line: dict, ranks: Ranks, begin: float, cpu: float) -> None:
    spent = ranks.objects(round(time.process_time() - cpu, 2))
    if ranks.rank == 0:
        print(json.dumps({**line, "seconds": round(time.perf_counter() - begin, 2), "cpu_seconds": spent}), flush=True)


def _boxes(images: int) -> tuple[list[Boxes], list[Detections]]:
    """Synthetic objects, 7.3 an image, and 100 detections an image, a third of them near an object."""
    rng, truth, detections = np.random.default_rng(0), [], []
    for _ in range(images):
        count = rng.poisson(7.3)
        objects = Boxes.of(_corners(rng, count), rng.integers(0, 80, count))
        near = rng.integers(0, count, 33 if count else 0)
        others = 100 - len(near)
        corners = np.vstack([objects.xyxy[near] + rng.normal(0, 8, (len(near), 4)), _corners(rng, others)])
        labels = np.concatenate([objects.labels[near], rng.integers(0, 80, others)])
        truth.append(objects)
        detections.append(Detections.of(corners, labels, rng.uniform(0, 1, 100)))
    return truth, detections


def _corners(rng: np.random.Generator, count: int) -> np.ndarray:
    low = rng.uniform(0, 400, (count, 2))
    return np.hstack([low, low + rng.uniform(8, 200, (count, 2))])


if __name__ == "__main__":
    main()
