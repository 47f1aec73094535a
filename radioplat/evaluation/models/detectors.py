"""Detectors of ``evaluate.models``: checkpoints, ONNX files and engines, each opened as a function of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from radioplat.errors import Problem, SpecError
from radioplat.evaluation.detection.measure_detector import Detect
from radioplat.evaluation.models.checkpoints import averages_of, open_each, open_file
from radioplat.evaluation.models.engine import EngineModel
from radioplat.exporting.engines.engine_record import record_path
from radioplat.exporting.onnx.flat_detector import BOXES
from radioplat.exporting.onnx.flat_student import LOGITS
from radioplat.models.detectors.base import Found, best_boxes
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.models.model_kind import ModelKind
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.vision_model import model_kind, weight_files
from radioplat.spec.schema.evaluate import EvaluationPrecision, ModelEntry
from radioplat.spec.schema.root import Spec

if TYPE_CHECKING:
    from radioplat.evaluation.models.onnx_file import OnnxModel

MOST_BOXES = 100  # boxes per image, as in COCO's protocol; a file does not contain its detector's num_select


@dataclass(frozen=True)
class DetectorModel:
    """A detector of ``evaluate.models``.

    Attributes:
        where: its field, ``evaluate.models[0]``.
        kind: format and precision: ``torch fp32``, ``ONNX int8``.
        bytes: on disk, with external weights.
        size: pixels a side of its input.
        detect: None if it cannot run on this machine.
        class_names: by label; empty if unknown.
        absent: the reason why it cannot run.
        engine: None for anything but an engine.
    """

    name: str
    where: str
    path: Path
    kind: str
    bytes: int
    size: int
    num_classes: int
    detect: Detect | None
    class_names: tuple[str, ...] = ()
    absent: str = ""
    engine: EngineModel | None = None


def kind_of(path: str | Path) -> ModelKind | None:
    """Return the kind of the model at ``path``, a checkpoint, an ONNX file or an engine; None if unreadable."""
    path = Path(path)
    try:
        if path.suffix.lower() == ".onnx":
            import onnx

            boxes = any(v.name == BOXES for v in onnx.load(str(path), load_external_data=False).graph.output)
        elif path.suffix.lower() == ".engine":
            boxes = f'"{BOXES}"' in record_path(path).read_text()
        else:
            return model_kind(path)
    except Exception:  # opening it later reports the problem; protobuf's exception class depends on its implementation
        return None
    return ModelKind.detector if boxes else ModelKind.student


def open_detectors(spec: Spec, device: str) -> list[DetectorModel]:
    """Open all of ``evaluate.models``, in their order.

    Raises:
        SpecError: with a problem for each that is no detector, cannot be read, or contradicts its fields.
    """
    models, refused = open_each(spec, lambda entry, where: open_detector(spec, entry, where, device))
    problems = [*_without_effect(spec), *refused]
    if not problems and not any(model.detect for model in models):
        reasons = "; ".join(model.absent for model in models)
        problems.append(Problem(f"none of them can run here: {reasons}", "evaluate.models"))
    problems += _differing(models)
    if problems:
        raise SpecError(*dict.fromkeys(problems))
    return models


def _without_effect(spec: Spec) -> Iterator[Problem]:
    config = spec.evaluate
    students = {
        "linear_probe": config.linear_probe.enable,
        "segmentation": config.segmentation.wanted,
        "change": config.change.wanted,
        "correspondence": config.correspondence.enable,
        "zero_shot": bool(config.zero_shot.text_tower),
        "num_gpus": config.num_gpus > 1,
    }
    for name, requested in students.items():
        if requested:
            yield Problem("this is for students, and the models are detectors", f"evaluate.{name}", "Leave it out.")


def open_detector(spec: Spec, entry: ModelEntry, where: str, device: str, field: str | None = None) -> DetectorModel:
    """Open a detector: a checkpoint, an ONNX file or an engine.

    Args:
        where: field of the entry.
        field: of the path; None: ``<where>.path``.

    Raises:
        RadioplatError: it is no detector, cannot be read, or contradicts its fields.
    """
    field = field or f"{where}.path"
    if (file := open_file(Path(entry.path), field, device, torch.get_num_threads())) is not None:
        return _of_file(spec, entry, where, file)
    return _of_checkpoint(spec, entry, where, field, device)


def _of_checkpoint(spec: Spec, entry: ModelEntry, where: str, field: str, device: str) -> DetectorModel:
    path = Path(entry.path).resolve()
    if entry.precision not in (None, EvaluationPrecision.fp32):
        hint = "Remove the line; export.data_type makes a file of another precision."
        raise SpecError("a detector's checkpoint is evaluated in fp32", where=f"{where}.precision", hint=hint)
    detector = load_detector(path, field, averages_of(spec, path)).to(device)
    form = detector.architecture
    formats = sorted({quantizer.format.value for quantizer in quantizers(detector).values()})
    size = spec.dataset.val_img_size or form.student.img_size
    if size % detector.stride:
        hint = f"Give dataset.val_img_size as a multiple of {detector.stride}."
        raise SpecError(f"{size} is not a multiple of the detector's stride", where=field, hint=hint)

    def detect(images: torch.Tensor) -> list[Found]:
        """Return the boxes that the checkpoint detects in each image."""
        return detector.detect(images.to(device), MOST_BOXES)

    return DetectorModel(
        name=entry.name,
        where=where,
        path=path,
        kind=f"torch fake-quant {'/'.join(formats)}" if formats else "torch fp32",
        bytes=sum(each.stat().st_size for each in weight_files(path)),
        size=size,
        num_classes=form.num_classes,
        detect=detect,
        class_names=tuple(form.class_names),
    )


def _of_file(spec: Spec, entry: ModelEntry, where: str, file: OnnxModel | EngineModel) -> DetectorModel:
    def detect(images: torch.Tensor) -> list[Found]:
        """Return the boxes that the file's outputs contain for each image."""
        outputs = file.encode(images).named
        return best_boxes(outputs[LOGITS], outputs[BOXES], images.shape[-2:], MOST_BOXES)

    return DetectorModel(
        name=entry.name,
        where=where,
        path=file.path,
        kind=file.kind,
        bytes=file.bytes,
        size=file.interface.size_for(spec.dataset.val_img_size, spec.dataset.img_size),
        num_classes=file.interface.num_classes,
        detect=None if file.reason else detect,
        absent=file.reason,
        engine=file if isinstance(file, EngineModel) else None,
    )


def _differing(models: Sequence[DetectorModel]) -> list[Problem]:
    """Return a problem for each model with other classes than the first."""
    named = next((model.class_names for model in models if model.class_names), ())
    problems = []
    for model in models:
        if model.num_classes != models[0].num_classes:
            message = f"it has {model.num_classes} classes, and {models[0].name} has {models[0].num_classes}"
            problems.append(Problem(message, f"{model.where}.path"))
        elif model.class_names and model.class_names != named:
            problems.append(Problem("its classes have other names than another model's", f"{model.where}.path"))
    return problems
