"""Checks of the training of a detector, and of detection fields in other runs."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.common.imports import missing_extra
from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.losses import Binds, definition_of
from radioplat.spec.schema.model import DetectorConfig, ModelTask
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision

_SPLITS = ("train_dataset", "val_dataset", "test_dataset", "quant_calibration_dataset")


def detector_problems(spec: Spec) -> Iterator[Problem]:
    """Yield fields that a detector cannot be trained with, and packages that it needs."""
    yield from missing_extra("hf", "a detector", "model.task")
    yield from missing_extra("detect", "mAP, which validations of a detector measure,", "model.task")
    if spec.dataset.knn_validation:
        yield Problem("a detector is validated by mAP", "dataset.knn_validation", "Leave it out.")
    names, hint = ("full_equivariance", "shift_equivariance"), "Leave it at its default."
    message = "teachers and detector share one view"
    yield from unused_fields(spec.dataset.train_dataset, names, "dataset.train_dataset", message, hint)
    if spec.train.precision not in (Precision.auto, Precision.fp32):
        hint = "Take fp32: matching and box losses need it."
        yield Problem(f"detectors are not trained in {spec.train.precision.value} yet", "train.precision", hint)
    if spec.train.zero_stage == 3:
        hint = "Take train.zero_stage 0, 1 or 2."
        yield Problem("ZeRO-3 does not support weights that a detector's layers share", "train.zero_stage", hint)
    if spec.train.compile:
        yield Problem("the backbone of a detector cannot be compiled", "train.compile", "Set it to false.")


def unused_teaching_fields(spec: Spec) -> Iterator[Problem]:
    """Yield fields of ``distill`` that have no effect without a detector."""
    names, hint = _OF_DETECTORS, "Set model.task: detection, or leave it out."
    yield from unused_fields(spec.distill, names, "distill", "no detector is trained", hint)
    for i, binding in enumerate(spec.distill.bindings):
        if definition_of(binding.criterion).binds is Binds.detector_maps:
            where = f"distill.bindings[{i}].criterion"
            yield Problem("this loss compares detectors", where, "Take another loss, or set model.task: detection.")


def detector_teaching_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``distill`` with detectors as teacher and student."""
    distill, message = spec.distill, "it has no effect on a detector"
    if not distill.bindings:
        hint = "Name modules of both, for example srcs.0 or queries."
        yield Problem("a detector is distilled by bindings", "distill.bindings", hint)
    hint = "Leave it at its default: a detector learns by bindings and boxes."
    yield from unused_fields(distill, _OF_FEATURES, "distill", message, hint)
    for i, teacher in enumerate(distill.teacher):
        yield from unused_fields(teacher, _OF_TEACHERS, f"distill.teacher[{i}]", message, "Leave it at its default.")


_OF_DETECTORS = ("box_loss_weight", "decoder_from_teacher", "encoder_from_teacher", "binding_form")
_OF_FEATURES = (
    "scheme", "mesa", "alpha", "label_form", "balance", "teacher_drop_prob", "vitdet", "target_norm", "loss_type",
    "mode", "loss_lambda", "then",
)  # fmt: skip
_OF_TEACHERS = (
    "source", "ensemble", "loss_type", "loss_lambda", "mode", "extra_losses", "adaptor", "mosaic", "spatial_norm_type",
)  # fmt: skip


def unused_detector_fields(spec: Spec) -> Iterator[Problem]:
    """Yield fields that have no effect without a detector."""
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
