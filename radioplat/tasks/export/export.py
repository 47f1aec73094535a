"""The task ``export``: a trained student or detector as an ONNX file or as weights in another layout."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from radioplat.errors import EngineError, SpecError
from radioplat.exporting.onnx.export import OnnxReport, export_onnx
from radioplat.exporting.weights.export import NAMES, WeightsReport, export_weights
from radioplat.models.model_kind import ModelKind
from radioplat.models.quantized.quantizer import in_float
from radioplat.models.vision_model import open_model
from radioplat.spec.checks.tasks.export import detector_export_problems, export_problems
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.resolved.number_formats import ACTIVATIONS
from radioplat.spec.schema.export import ExportFormat
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.side_files import find_needs, write_beside
from radioplat.tasks.shared.find_checkpoint import find_checkpoint, task_folder
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task import kind_of, log_task_to_wandb


def export(spec: Spec) -> OnnxReport | WeightsReport:
    """Task ``export``: the trained student or detector of ``export.checkpoint`` as ``export.format`` says.

    Raises:
        SpecError: fields of ``export`` contradict each other.
        EngineError: there is no checkpoint yet, or the student cannot be exported as asked.
        WeightsError: the checkpoint cannot be read.
    """
    if problems := list(export_problems(spec)):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "export", spec.export.results_dir)
    report = log_task(folder, "export", to_yaml(spec), lambda: _export(spec), _export_kpi)
    of = find_checkpoint(spec, spec.export.checkpoint, "export.checkpoint").resolve()
    made = Product(report.path, kind_of(report.path), [of])
    log_task_to_wandb(spec, folder.path, "export", figures=_export_kpi(report), made=made)
    return report


def _export(spec: Spec) -> OnnxReport | WeightsReport:
    config = spec.export
    check_channels(config.input_channel, "export")
    model: Any = open_model(
        find_checkpoint(spec, config.checkpoint, "export.checkpoint"), "export.checkpoint", config.use_ema
    )
    height, width = config.input_height, config.input_width
    if model.model_kind is ModelKind.detector:
        side = spec.dataset.img_size
        if problems := list(detector_export_problems(config, height or side, width or side, model.stride)):
            raise SpecError(*problems)
    if config.format is not ExportFormat.onnx:
        size, adaptors = model.img_size, config.adaptors
        path = weights_file(spec)
        return export_weights(model, config.format, path, height=height or size, width=width or size, adaptors=adaptors)
    needs = find_needs(spec, model, onnx_file(spec))
    # As in TAO: the weights that QAT trained without its scales, which cover too few tensors for DLA.
    with in_float(model) if config.force_ptq else contextlib.nullcontext():
        report = export_onnx(
            model,
            onnx_file(spec),
            height=height or spec.dataset.img_size,
            width=width or spec.dataset.img_size,
            batch_size=config.batch_size,
            dynamic_resolution=config.dynamic_resolution,
            opset=config.opset_version,
            tensorrt_version=config.tensorrt_version,
            adaptors=config.adaptors,
            data_type=_float_type(spec),
            stored_weights=config.stored_weights,
            float_path=needs.floats,
            verbose=config.verbose,
        )
    return dataclasses.replace(report, beside=write_beside(spec, model, report, needs))


def _float_type(spec: Spec) -> str:
    """Return the data type of layers that are not quantized: ``export.data_type``, else the engine's."""
    data_type = spec.export.data_type or spec.gen_trt_engine.tensorrt.data_type
    return "fp32" if spec.export.data_type is None and data_type.strip().lower() in ACTIVATIONS else data_type


def _export_kpi(report: OnnxReport | WeightsReport) -> dict[str, float]:
    return {"bytes": report.bytes, "max_abs_error": report.max_abs_error}


def onnx_file(spec: Spec) -> Path:
    """Where task ``export`` writes format ``onnx``."""
    return Path(spec.export.onnx_file or task_folder(spec, "export") / "student.onnx")


def weights_file(spec: Spec) -> Path:
    """Where task ``export`` writes weights; for format ``hf`` a folder."""
    return Path(spec.export.output or task_folder(spec, "export") / NAMES[spec.export.format])


def check_channels(channels: int, section: str) -> None:
    if channels != 3:
        raise EngineError(f"a student takes 3 channels, not {channels}", where=f"{section}.input_channel")
