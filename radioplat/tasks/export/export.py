"""The tasks ``export`` and ``gen_trt_engine``: paths out of the spec, and the work done elsewhere in this room."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from radioplat.errors import EngineError, SpecError
from radioplat.exporting.engines.build import EngineReport, build_engine
from radioplat.exporting.onnx.export import OnnxReport, export_onnx
from radioplat.exporting.weights.export import NAMES, WeightsReport, export_weights
from radioplat.models.detectors.checkpoint import is_detector
from radioplat.models.quantized.quantizer import in_float
from radioplat.spec.checks.tasks.export import export_problems
from radioplat.spec.checks.tasks.training_task import COMMANDS
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.export import ExportFormat
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.detector import export_detector, float_type_of
from radioplat.tasks.export.side_files import find_needs, write_beside
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task import kind_of, tell_task

LATEST = "model_latest"


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
    tell_task(spec, folder.path, "export", figures=_export_kpi(report), made=made)
    return report


def _export(spec: Spec) -> OnnxReport | WeightsReport:
    from radioplat.models.student.checkpoint import load_student

    asked = spec.export
    _check_channels(asked.input_channel, "export")
    path = find_checkpoint(spec, asked.checkpoint, "export.checkpoint")
    if is_detector(path):
        return export_detector(spec, path, onnx_file(spec))
    student = load_student(path, "export.checkpoint", asked.use_ema)
    if asked.format is not ExportFormat.onnx:
        size = student.architecture.img_size
        return export_weights(
            student,
            asked.format,
            weights_file(spec),
            height=asked.input_height or size,
            width=asked.input_width or size,
            adaptors=asked.adaptors,
        )
    needs = find_needs(spec, student, onnx_file(spec))
    # As TAO's: the weights that QAT trained, without its scales, which are too few for DLA.
    with in_float(student) if asked.force_ptq else contextlib.nullcontext():
        report = export_onnx(
            student,
            onnx_file(spec),
            height=asked.input_height or spec.dataset.img_size,
            width=asked.input_width or spec.dataset.img_size,
            batch_size=asked.batch_size,
            dynamic_resolution=asked.dynamic_resolution,
            opset=asked.opset_version,
            tensorrt_version=asked.tensorrt_version,
            adaptors=asked.adaptors,
            data_type=float_type_of(spec),
            stored_weights=asked.stored_weights,
            float_path=needs.floats,
            verbose=asked.verbose,
        )
    return dataclasses.replace(report, beside=write_beside(spec, student, report, needs))


def gen_trt_engine(spec: Spec) -> EngineReport:
    """Task ``gen_trt_engine``: ``gen_trt_engine.onnx_file``, by default what ``export`` wrote, as an engine.

    Raises:
        EngineError: there is no ONNX file yet, it does not fit the spec, or TensorRT gives a reason.
    """
    folder = TaskFolder(spec.results_dir, "gen_trt_engine", spec.gen_trt_engine.results_dir)
    report = log_task(folder, "gen_trt_engine", to_yaml(spec), lambda: _gen_trt_engine(spec), _engine_kpi)
    made = Product(report.path, "engine", [Path(spec.gen_trt_engine.onnx_file or onnx_file(spec))])
    tell_task(spec, folder.path, "gen_trt_engine", figures=_engine_kpi(report), made=made)
    return report


def _export_kpi(report: OnnxReport | WeightsReport) -> dict[str, float]:
    return {"bytes": report.bytes, "max_abs_error": report.max_abs_error}


def _engine_kpi(report: EngineReport) -> dict[str, float]:
    return {"bytes": report.bytes, "seconds": report.seconds}


def _gen_trt_engine(spec: Spec) -> EngineReport:
    asked = spec.gen_trt_engine
    _check_channels(asked.input_channel, "gen_trt_engine")
    config = asked.tensorrt
    if asked.batch_size > 0:
        one = asked.batch_size
        config = dataclasses.replace(config, min_batch_size=one, opt_batch_size=one, max_batch_size=one)
    return build_engine(
        asked.onnx_file or onnx_file(spec),
        engine_file(spec),
        config,
        backend=asked.backend,
        height=asked.input_height,
        width=asked.input_width,
        timing_cache=asked.timing_cache,
        gpu_id=asked.gpu_id,
        verbose=asked.verbose,
    )


def onnx_file(spec: Spec) -> Path:
    """Where task ``export`` writes format ``onnx``."""
    return Path(spec.export.onnx_file or task_folder(spec, "export") / "student.onnx")


def weights_file(spec: Spec) -> Path:
    """Where task ``export`` writes weights; for format ``hf`` a folder."""
    return Path(spec.export.output or task_folder(spec, "export") / NAMES[spec.export.format])


def engine_file(spec: Spec) -> Path:
    """Where task ``gen_trt_engine`` writes."""
    return Path(spec.gen_trt_engine.trt_engine or task_folder(spec, "gen_trt_engine") / "student.engine")


def task_folder(spec: Spec, task: str) -> Path:
    """``<task>.results_dir`` where the spec gives it, else ``<results_dir>/<task>``."""
    own = getattr(getattr(spec, task), "results_dir", None)  # `train` has none, as in TAO
    return Path(own or Path(spec.results_dir) / task)


def find_checkpoint(spec: Spec, asked: str | None, field: str) -> Path:
    """The checkpoint folder a task works on: the one asked for, else the latest that ``distill`` or ``train`` left.

    Args:
        asked: value of the spec's ``field``, or None.

    Raises:
        EngineError: it does not exist; says which task to run first.
    """
    if asked:
        if not Path(asked).exists():
            raise EngineError(f"there is no checkpoint {asked}", where=field, hint="Give a model_epoch_... folder.")
        return Path(asked)
    links = [task_folder(spec, task) / LATEST for task in COMMANDS]
    found = [link for link in links if link.exists()]
    if not found:
        raise EngineError(
            f"no trained student: neither {links[0]} nor {links[1]} exists",
            where=field,
            hint=f"Run `radioplat distill` (or `radioplat train`) first, or give {field}.",
        )
    return max(found, key=lambda link: link.resolve().stat().st_mtime)


def _check_channels(channels: int, section: str) -> None:
    if channels != 3:
        raise EngineError(f"a student takes 3 channels, not {channels}", where=f"{section}.input_channel")
