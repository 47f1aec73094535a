"""The task ``export`` where the checkpoint is a detector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from radioplat.errors import Problem, SpecError
from radioplat.exporting.onnx.export import OnnxReport, export_onnx
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.spec.resolved.number_formats import ACTIVATIONS
from radioplat.spec.schema.export import ExportFormat
from radioplat.spec.schema.root import Spec


def export_detector(spec: Spec, checkpoint: Path, path: Path) -> OnnxReport:
    """The detector of ``checkpoint`` as an ONNX file.

    Raises:
        SpecError: a field of ``export`` that a detector has no use for, or a size that its stride does not divide.
        WeightsError: the checkpoint cannot be read.
        EngineError: it cannot be exported as asked.
    """
    asked = spec.export
    if problems := list(_problems(spec)):
        raise SpecError(*problems)
    detector = load_detector(checkpoint, "export.checkpoint", asked.use_ema)
    height, width = asked.input_height or spec.dataset.img_size, asked.input_width or spec.dataset.img_size
    for side, name in ((height, "input_height"), (width, "input_width")):
        if side % detector.stride:
            hint = f"Multiples of {detector.stride}."
            raise SpecError(f"{side} is not a multiple of the detector's stride", where=f"export.{name}", hint=hint)
    return export_onnx(
        detector,
        path,
        height=height,
        width=width,
        batch_size=asked.batch_size,
        opset=asked.opset_version,
        tensorrt_version=asked.tensorrt_version,
        data_type=float_type_of(spec),
        stored_weights=asked.stored_weights,
        verbose=asked.verbose,
    )


def float_type_of(spec: Spec) -> str:
    """What layers compute in that are not quantized: ``export.data_type``, else the engine's."""
    data_type = spec.export.data_type or spec.gen_trt_engine.tensorrt.data_type
    return "fp32" if spec.export.data_type is None and data_type.strip().lower() in ACTIVATIONS else data_type


def _problems(spec: Spec) -> Iterator[Problem]:
    asked = spec.export
    if asked.format is not ExportFormat.onnx:
        yield Problem("a detector leaves as onnx alone", "export.format", "Its checkpoint is one safetensors file.")
    if asked.dynamic_resolution:
        hint = "Leave it out, and export a file for each size."
        yield Problem("a detector's file is for images of one size", "export.dynamic_resolution", hint)
    if asked.adaptors:
        yield Problem("a detector has no heads of teachers", "export.adaptors", "Leave it out.")
    wanted = {"calibration_cache": asked.wants_cache, "force_ptq": asked.force_ptq, "bundle": asked.bundle}
    for name, said in (wanted | {"cpu": asked.cpu}).items():
        if said:
            yield Problem("this is written for students, not for detectors", f"export.{name}", "Leave it out.")
