"""Checks of section ``export``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.common.imports import missing_extra
from radioplat.errors import Problem
from radioplat.spec.checks.tasks.engine import engine_packages, engine_problems
from radioplat.spec.checks.tasks.quantize import calibration_problems
from radioplat.spec.checks.unused_fields import unknown_teacher
from radioplat.spec.resolved.number_formats import ACTIVATIONS, QUANTIZED
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.resolved.tensorrt_version import FIRST_WITHOUT_CACHE, LOWEST_OPSET, newest_opset, parse_version
from radioplat.spec.schema.export import AdaptorTypes, CpuQuantization, ExportConfig, ExportFormat
from radioplat.spec.schema.root import Spec

_OTHER_FORMATS = "Weights in other formats are exported without it."


def export_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of section ``export``."""
    config = spec.export
    if config.adaptor_types is AdaptorTypes.own and config.format is not ExportFormat.radio:
        message = f"format {config.format.value} has no types of adaptors"
        yield Problem(message, "export.adaptor_types", "Leave it out, or set export.format=radio.")
    if config.format is ExportFormat.onnx:
        if config.output is not None:
            yield Problem("it is for formats other than onnx", "export.output", "ONNX is written to export.onnx_file.")
        yield from missing_extra("onnx", "format onnx", "export.format", instead=_OTHER_FORMATS)
        yield from _deployment(spec)
        return
    if config.onnx_file is not None:
        yield Problem(f"format {config.format.value} writes no ONNX", "export.onnx_file", "Set export.output.")
    if config.dynamic_resolution:
        hint = "Leave it out; weights have no size."
        yield Problem(f"format {config.format.value} has no graph", "export.dynamic_resolution", hint)
    onnx_only = _side_files(config) | {"cpu_target": config.cpu_target, "tensorrt_version": config.tensorrt_version}
    for name, value in onnx_only.items():
        if value:
            yield Problem(f"format {config.format.value} writes no ONNX", f"export.{name}", "Leave it out.")
    if config.data_type not in (None, "fp32"):
        hint = "Leave export.data_type out; only format onnx has a data type."
        yield Problem(
            f"format {config.format.value} is written in fp32, not {config.data_type}", "export.data_type", hint
        )


def _side_files(config: ExportConfig) -> dict[str, object]:
    """Return the fields that write more files next to the ONNX file, with true values for those that are set."""
    return {
        "calibration_cache": config.wants_cache,
        "force_ptq": config.force_ptq,
        "bundle": config.bundle,
        "cpu": config.cpu,
    }


def _deployment(spec: Spec) -> Iterator[Problem]:
    """Check the fields about scales, caches, bundles and files for CPUs."""
    config = spec.export
    floats = config.data_type or spec.gen_trt_engine.tensorrt.data_type
    is_fp32 = floats.strip().lower() in ("fp32", *ACTIVATIONS)  # with quantized layers in an engine others are fp32
    for name in ("force_ptq", "cpu"):
        if getattr(config, name) and not is_fp32:
            yield Problem(f"it needs an fp32 file, not {floats}", f"export.{name}", "Set export.data_type=fp32.")
    if config.force_ptq or config.cpu is CpuQuantization.static:
        yield from calibration_problems(spec)
    if config.cpu_target is not None and config.cpu is not CpuQuantization.static:
        hint = "Set export.cpu=static, or leave it out."
        yield Problem("it applies to export.cpu=static only", "export.cpu_target", hint)
    hint, version = "Give it as 8.6.1 or 10.3.", parse_version(config.tensorrt_version or "")
    if version is not None:
        yield from _opset(config, version)
    elif config.tensorrt_version is not None:
        yield Problem(f"{config.tensorrt_version!r} is not a version of TensorRT", "export.tensorrt_version", hint)
    elif config.wants_cache:
        yield Problem("a calibration cache needs the version of TensorRT", "export.tensorrt_version", hint)
    if config.wants_cache and version is not None and version[0] >= FIRST_WITHOUT_CACHE:
        message = f"TensorRT {version[0]} has no calibration caches"
        yield Problem(message, "export.calibration_cache", "Its INT8 comes from Q/DQ alone: leave it out.")


def _opset(config: ExportConfig, version: tuple[int, int, int]) -> Iterator[Problem]:
    """Check that this version of TensorRT reads the operator set."""
    newest = newest_opset(version, QUANTIZED)  # any quantized format, since the checkpoint is not read here
    reads = f"TensorRT {config.tensorrt_version} reads ONNX up to operator set {newest}"
    if newest < LOWEST_OPSET:
        message = f"{reads}, and {LOWEST_OPSET} is the lowest that is written"
        yield Problem(message, "export.tensorrt_version", "8.4 or newer is needed.")
    elif config.opset_version is not None and config.opset_version > newest:
        hint = f"Leave it out, or take {newest}."
        yield Problem(f"{reads}, not {config.opset_version}", "export.opset_version", hint)


def detector_export_problems(config: ExportConfig, height: int, width: int, stride: int) -> Iterator[Problem]:
    """Yield the fields of ``export`` that detectors do not have, and image sides that ``stride`` does not divide."""
    if config.format is not ExportFormat.onnx:
        yield Problem("a detector is exported as onnx only", "export.format", "Its checkpoint is one safetensors file.")
    if config.dynamic_resolution:
        hint = "Leave it out, and export a file for each size."
        yield Problem("a detector's file is for images of one size", "export.dynamic_resolution", hint)
    if config.adaptors:
        yield Problem("a detector has no heads for teachers", "export.adaptors", "Leave it out.")
    for name, value in _side_files(config).items():
        if value:
            yield Problem("it is not supported for detectors", f"export.{name}", "Leave it out.")
    for side, name in ((height, "input_height"), (width, "input_width")):
        if side % stride:
            yield Problem(
                f"{side} is not a multiple of the detector's stride", f"export.{name}", f"Multiples of {stride}."
            )


def chained_export_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of the tasks ``export`` and ``gen_trt_engine`` if ``distill.then`` runs them."""
    config, then = spec.export, spec.distill.then
    if "export" in then:
        yield from export_problems(spec)
        for name in config.adaptors:
            yield from unknown_teacher(name, teacher_names(spec.distill.teacher), "export.adaptors")
        if config.format is not ExportFormat.onnx and "gen_trt_engine" in then and not spec.gen_trt_engine.onnx_file:
            hint = "Leave export.format at onnx, or give gen_trt_engine.onnx_file."
            message = f"an engine is built from ONNX, which format {config.format.value} does not write"
            yield Problem(message, "export.format", hint)
    if "gen_trt_engine" in then:
        yield from engine_packages(spec)
        yield from engine_problems(spec.gen_trt_engine.tensorrt)
