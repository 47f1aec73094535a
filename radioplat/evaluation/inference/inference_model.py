"""A student or a detector, of any format, that is used on images without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from radioplat.data.storage.files import not_a_file
from radioplat.errors import EngineError, SpecError
from radioplat.evaluation.detection.measure_detector import Detect
from radioplat.evaluation.models.checkpoints import open_listed
from radioplat.evaluation.models.detectors import MOST_BOXES, kind_of, open_detector
from radioplat.evaluation.models.evaluated_model import Encoder, student_encoder
from radioplat.evaluation.models.view_sizes import size_problems
from radioplat.models.detectors.base import Detector
from radioplat.models.model_kind import ModelKind
from radioplat.models.student.architecture import classes_differ
from radioplat.models.student.student import Student
from radioplat.spec.schema.evaluate import ModelEntry
from radioplat.spec.schema.root import Spec


@dataclass(frozen=True)
class InferenceModel:
    """A model with what it computes: ``encode`` of a student, ``detect`` of a detector; the other is None.

    Attributes:
        where: the field or argument that names it, for errors.
        kind: format and precision: ``torch fp32``, ``ONNX int8``.
        size: pixels a side of its input.
        classifies: whether the student has a classifier.
        class_names: by index; empty if unknown.
    """

    where: str
    kind: str
    size: int
    encode: Encoder | None = None
    detect: Detect | None = None
    classifies: bool = False
    class_names: tuple[str, ...] = ()


def open_inference_model(spec: Spec, path: Path, field: str) -> InferenceModel:
    """Open a checkpoint, an ONNX file or an engine as an evaluation does.

    Args:
        spec: ``dataset.val_img_size``, ``dataset.img_size``, ``dataset.classes`` and ``evaluate.use_ema`` are read.
        field: of the path, for errors.

    Raises:
        RadioplatError: it cannot be opened, cannot run on this machine, or has another number of classes than names.
    """
    kind = not_a_file(str(path)) if path.exists() else ""
    if kind not in ("", "a folder") or (kind and path.suffix.lower() in (".onnx", ".engine")):
        raise SpecError(f"{path} is {kind}, not a model", where=field)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    entry, where = ModelEntry("model", str(path)), field.rpartition(".")[0]
    classes = tuple(spec.dataset.classes)
    if kind_of(path) is ModelKind.detector:
        detector = open_detector(spec, entry, where, device, field)
        if detector.detect is None:
            raise EngineError(detector.absent, where=field)
        names = _names(detector.class_names, classes)
        if not detector.class_names and classes and len(classes) != detector.num_classes:
            message = f"{len(classes)} classes are named, and {path} has {detector.num_classes}"
            raise SpecError(message, where="dataset.classes")
        return InferenceModel(field, detector.kind, detector.size, detect=detector.detect, class_names=names)
    student = open_listed(spec, entry, where, device, torch.get_num_threads(), field)
    if student.evaluated is None:
        raise EngineError("; ".join(student.absent), where=field)
    own = student.architecture.class_names if student.architecture else ()
    return InferenceModel(
        where=field,
        kind=student.kind,
        size=student.evaluated.size,
        encode=student.evaluated.encode,
        classifies=student.classifies,
        class_names=_names(own, classes) if student.classifies else (),
    )


def _names(own: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return a model's own names of its classes, or those of ``dataset.classes``.

    Raises:
        SpecError: both are known, and differ.
    """
    if own and given and tuple(own) != tuple(given):
        message = f"the model has other classes: {classes_differ(own, given)}"
        raise SpecError(message, where="dataset.classes", hint="Leave it out: the names are in the checkpoint.")
    return tuple(own or given)


def loaded_model(model: Student | Detector, size: int | None) -> InferenceModel:
    """Return a student or a detector that is in memory, on its device.

    Args:
        size: pixels a side of its input; None: the training resolution.

    Raises:
        SpecError: the model does not accept this size.
    """
    form = model.architecture
    size = size or form.student.img_size
    if isinstance(model, Student):
        if problems := list(size_problems(model.architecture, {"size": size})):
            raise SpecError(*problems)
        names = model.architecture.class_names
        classifies = model.architecture.num_classes > 0
        encode = student_encoder(model, getattr(model.backbone, "num_tokens", None))  # of a RADIO 1D student: its own
        return InferenceModel("model", "torch", size, encode=encode, classifies=classifies, class_names=names)
    if size % model.stride:
        raise SpecError(f"{size} is not a multiple of the detector's stride {model.stride}", where="size")
    detector, device = model.eval(), next(model.parameters()).device
    return InferenceModel(
        where="model",
        kind="torch",
        size=size,
        detect=lambda images: detector.detect(images.to(device), MOST_BOXES),
        class_names=tuple(model.architecture.class_names),
    )
