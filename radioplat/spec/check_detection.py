"""Contradictions where a detector is trained, and fields of detection where none is."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.model import DetectorConfig, ModelTask
from radioplat.spec.root import Spec
from radioplat.spec.train import Precision

_SPLITS = ("train_dataset", "val_dataset", "test_dataset", "quant_calibration_dataset")


def detects(spec: Spec) -> bool:
    """Whether the run trains a detector."""
    return spec.model.task is ModelTask.detection


def detection_problems(spec: Spec) -> Iterator[Problem]:
    """What does not go together with ``model.task``."""
    for i, teacher in enumerate(spec.distill.teacher):
        if teacher.model.task is not ModelTask.features or teacher.model.detector != DetectorConfig():
            where = f"distill.teacher[{i}].model"
            yield Problem("a teacher's checkpoint knows what it is", where, "Leave task and detector out there.")
    if not detects(spec):
        yield from _without_effect(spec)
        return
    if spec.dataset.num_classes:
        hint = "Leave it at 0: a COCO file and dataset.classes name a detector's classes."
        yield Problem("it counts classes of whole images", "dataset.num_classes", hint)
    if spec.dataset.knn_validation:
        yield Problem("a detector is judged by mAP", "dataset.knn_validation", "Leave it out.")
    for name in ("full_equivariance", "shift_equivariance"):
        if getattr(spec.dataset.train_dataset, name):
            hint = "Leave it at its default: crops and flips move boxes already."
            yield Problem("teachers and detector see one view", f"dataset.train_dataset.{name}", hint)
    if spec.train.precision is not Precision.fp32:
        hint = "Take fp32: matching and box losses need it."
        yield Problem(f"detectors are not trained in {spec.train.precision.value} yet", "train.precision", hint)
    if spec.train.zero_stage == 3:
        hint = "Take train.zero_stage 0, 1 or 2."
        yield Problem("ZeRO-3 cuts up weights that a detector's layers share", "train.zero_stage", hint)
    if spec.train.compile:
        yield Problem("a backbone in a detector is not compiled", "train.compile", "Set it to false.")


def _without_effect(spec: Spec) -> Iterator[Problem]:
    hint = "Set model.task: detection, or leave it out."
    if spec.model.detector != DetectorConfig():
        yield Problem("no detector is trained", "model.detector", hint)
    if spec.dataset.classes:
        yield Problem("no detector is trained", "dataset.classes", hint)
    for name in _SPLITS:
        if getattr(spec.dataset, name).coco:
            yield Problem("no detector is trained", f"dataset.{name}.coco", hint)
