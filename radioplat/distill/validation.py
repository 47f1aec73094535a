"""kNN on the held-out split during a run (``dataset.knn_validation``), with the weights of a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from radioplat.cores import torch_beside
from radioplat.distill.prepare import Run
from radioplat.evaluate.encoder import student_encoder
from radioplat.evaluate.images import open_images
from radioplat.evaluate.measure import measure
from radioplat.evaluate.subjects import Subject
from radioplat.models.checkpoint import load_student
from radioplat.spec.evaluation import CorrespondenceConfig, LinearProbeConfig


def validation_due(run: Run, steps: int) -> bool:
    """Whether a validation follows ``steps`` steps."""
    every = run.spec.train.validation_interval * run.steps_per_epoch
    return run.spec.dataset.knn_validation and (steps % every == 0 or steps == run.total_steps)


def validate(run: Run, checkpoint: Path) -> dict[str, float]:
    """kNN accuracy of ``checkpoint`` by name: ``knn/top1``, ``knn/top5``; rank 0 only, on the CPU.

    Of the EMA weights in a run that keeps them.
    """
    student = load_student(checkpoint, ema=run.spec.train.enable_ema)
    size = run.spec.dataset.val_img_size or student.architecture.img_size
    batches = run.spec.dataset.knn_max_train_batches
    # Of all metrics kNN alone: the rest belongs to the task `evaluate`.
    nothing = {"linear_probe": LinearProbeConfig(), "correspondence": CorrespondenceConfig()}
    config = dataclasses.replace(run.spec.evaluate, pictures=0, **nothing)
    if batches:
        config = dataclasses.replace(config, max_images=batches * run.spec.dataset.batch_size)
    bank, queries, _ = open_images(dataclasses.replace(run.spec, evaluate=config), {size})
    with torch_beside(bank.threads):
        found = measure({"student": Subject(student_encoder(student), size, student)}, {}, bank, queries, config)
    knn = found.knn.get("student")
    return {} if knn is None else {"knn/top1": knn.top1, "knn/top5": knn.top5}
