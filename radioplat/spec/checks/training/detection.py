"""Contradictions where a detector is trained, and fields of detection where none is."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.losses import Binds, definition_of
from radioplat.spec.schema.distill import DistillConfig, TeacherConfig
from radioplat.spec.schema.model import DetectorConfig, ModelTask
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision

_SPLITS = ("train_dataset", "val_dataset", "test_dataset", "quant_calibration_dataset")


def detector_problems(spec: Spec) -> Iterator[Problem]:
    """Yield fields that a detector cannot be trained with."""
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


def unused_teaching_fields(spec: Spec) -> Iterator[Problem]:
    """Yield fields of ``distill`` that only a detector has, where none is trained."""
    distill, default = spec.distill, DistillConfig()
    for name in ("box_loss_weight", "decoder_from_teacher"):
        if getattr(distill, name) != getattr(default, name):
            hint = "Set model.task: detection, or leave it out."
            yield Problem("no detector is trained", f"distill.{name}", hint)
    for i, binding in enumerate(distill.bindings):
        if definition_of(binding.criterion).binds is Binds.detector_maps:
            where = f"distill.bindings[{i}].criterion"
            yield Problem("it compares detectors", where, "Take another loss, or set model.task: detection.")


def detector_teaching_problems(spec: Spec) -> Iterator[Problem]:
    """Yield fields of ``distill`` that do not go together where one detector teaches another."""
    distill, default = spec.distill, DistillConfig()
    if not distill.bindings:
        hint = "Name modules of both, as srcs.0 or queries."
        yield Problem("a detector is taught by bindings", "distill.bindings", hint)
    for name in _OF_FEATURES:
        if getattr(distill, name) != getattr(default, name):
            hint = "Leave it at its default: a detector learns by bindings and boxes."
            yield Problem("it has no effect on a detector", f"distill.{name}", hint)
    plain = TeacherConfig()
    for i, teacher in enumerate(distill.teacher):
        for name in _OF_TEACHERS:
            if getattr(teacher, name) != getattr(plain, name):
                where = f"distill.teacher[{i}].{name}"
                yield Problem("it has no effect where a detector teaches", where, "Leave it at its default.")


_OF_FEATURES = (
    "scheme", "mesa", "alpha", "label_form", "balance", "teacher_drop_prob", "vitdet", "target_norm", "loss_type",
    "mode", "loss_lambda", "then",
)  # fmt: skip
_OF_TEACHERS = (
    "source", "ensemble", "loss_type", "loss_lambda", "mode", "extra_losses", "adaptor", "mosaic", "spatial_norm_type",
)  # fmt: skip


def unused_detector_fields(spec: Spec) -> Iterator[Problem]:
    """Yield fields of detection where no detector is trained."""
    hint = "Set model.task: detection, or leave it out."
    if spec.model.detector != DetectorConfig():
        yield Problem("no detector is trained", "model.detector", hint)
    for i, teacher in enumerate(spec.distill.teacher):
        if teacher.model.task is not ModelTask.features or teacher.model.detector != DetectorConfig():
            yield Problem("no detector is trained", f"distill.teacher[{i}].model", hint)
    if spec.dataset.classes:
        yield Problem("no detector is trained", "dataset.classes", hint)
    for name in _SPLITS:
        if getattr(spec.dataset, name).coco:
            yield Problem("no detector is trained", f"dataset.{name}.coco", hint)
