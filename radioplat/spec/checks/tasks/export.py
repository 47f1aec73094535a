"""Contradictions in section ``export``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.engine import engine_problems
from radioplat.spec.checks.tasks.quantize import calibration_problems
from radioplat.spec.resolved.number_formats import ACTIVATIONS, QUANTIZED
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.resolved.tensorrt_version import FIRST_WITHOUT_CACHE, LOWEST_OPSET, newest_opset, parse_version
from radioplat.spec.schema.export import CpuQuantization, ExportConfig, ExportFormat
from radioplat.spec.schema.root import Spec


def export_problems(spec: Spec) -> Iterator[Problem]:
    """Fields of ``export`` that contradict each other."""
    asked = spec.export
    if asked.format is ExportFormat.onnx:
        if asked.output is not None:
            yield Problem("is for formats other than onnx", "export.output", "ONNX is written to export.onnx_file.")
        yield from _deployment(spec)
        return
    if asked.onnx_file is not None:
        yield Problem(f"format {asked.format.value} writes no ONNX", "export.onnx_file", "Take export.output.")
    if asked.dynamic_resolution:
        hint = "Leave it out; weights have no size."
        yield Problem(f"format {asked.format.value} is no graph", "export.dynamic_resolution", hint)
    wanted = {"calibration_cache": asked.wants_cache, "force_ptq": asked.force_ptq, "bundle": asked.bundle}
    wanted |= {"cpu": asked.cpu, "cpu_target": asked.cpu_target, "tensorrt_version": asked.tensorrt_version}
    for name, said in wanted.items():
        if said:
            yield Problem(f"format {asked.format.value} writes no ONNX", f"export.{name}", "Leave it out.")
    if asked.data_type not in (None, "fp32"):
        hint = "Leave export.data_type out; onnx alone is typed."
        yield Problem(
            f"format {asked.format.value} is written in fp32, not {asked.data_type}", "export.data_type", hint
        )


def _deployment(spec: Spec) -> Iterator[Problem]:
    """Scales, caches, bundles and files for CPUs."""
    asked = spec.export
    floats = asked.data_type or spec.gen_trt_engine.tensorrt.data_type
    is_fp32 = floats.strip().lower() in ("fp32", *ACTIVATIONS)  # beside an engine's quantized layers others are fp32
    for name in ("force_ptq", "cpu"):
        if getattr(asked, name) and not is_fp32:
            yield Problem(f"starts from fp32, not {floats}", f"export.{name}", "Take export.data_type=fp32.")
    if asked.force_ptq or asked.cpu is CpuQuantization.static:
        yield from calibration_problems(spec)
    if asked.cpu_target is not None and asked.cpu is not CpuQuantization.static:
        hint = "Take export.cpu=static, or leave it out."
        yield Problem("is of export.cpu=static, which alone differs between CPUs", "export.cpu_target", hint)
    version = None
    if asked.tensorrt_version is not None:
        version = parse_version(asked.tensorrt_version)
        if version is None:
            hint = "Give it as 8.6.1 or 10.3."
            yield Problem(f"{asked.tensorrt_version!r} is no version of TensorRT", "export.tensorrt_version", hint)
        else:
            yield from _opset(asked, version)
    if asked.wants_cache:
        if asked.tensorrt_version is None:
            yield Problem("which TensorRT is the cache for?", "export.tensorrt_version", "Give it as 8.6.1 or 10.3.")
        elif version is not None and version[0] >= FIRST_WITHOUT_CACHE:
            message = f"TensorRT {version[0]} has no calibration caches"
            yield Problem(message, "export.calibration_cache", "Its INT8 comes from Q/DQ alone: leave it out.")


def _opset(asked: ExportConfig, version: tuple[int, int, int]) -> Iterator[Problem]:
    """An operator set that the TensorRT that is named does not read."""
    newest = newest_opset(version, QUANTIZED)  # which of them the student holds, the checkpoint says
    reads = f"TensorRT {asked.tensorrt_version} reads ONNX up to operator set {newest}"
    if newest < LOWEST_OPSET:
        message = f"{reads}, and {LOWEST_OPSET} is the lowest that is written"
        yield Problem(message, "export.tensorrt_version", "It takes 8.4 or newer.")
    elif asked.opset_version is not None and asked.opset_version > newest:
        hint = f"Leave it out, or take {newest}."
        yield Problem(f"{reads}, not {asked.opset_version}", "export.opset_version", hint)


def detector_export_problems(config: ExportConfig, height: int, width: int, stride: int) -> Iterator[Problem]:
    """Yield the fields of ``export`` that are only for students, and image sides that ``stride`` does not divide."""
    if config.format is not ExportFormat.onnx:
        yield Problem("a detector is exported as onnx only", "export.format", "Its checkpoint is one safetensors file.")
    if config.dynamic_resolution:
        hint = "Leave it out, and export a file for each size."
        yield Problem("a detector's file is for images of one size", "export.dynamic_resolution", hint)
    if config.adaptors:
        yield Problem("a detector has no heads of teachers", "export.adaptors", "Leave it out.")
    wanted = {"calibration_cache": config.wants_cache, "force_ptq": config.force_ptq, "bundle": config.bundle}
    for name, value in (wanted | {"cpu": config.cpu}).items():
        if value:
            yield Problem("this is for students, not for detectors", f"export.{name}", "Leave it out.")
    for side, name in ((height, "input_height"), (width, "input_width")):
        if side % stride:
            yield Problem(
                f"{side} is not a multiple of the detector's stride", f"export.{name}", f"Multiples of {stride}."
            )


def chained_export_problems(spec: Spec) -> Iterator[Problem]:
    """What ``distill.then`` would meet in tasks ``export`` and ``gen_trt_engine`` after the training."""
    asked, then = spec.export, spec.distill.then
    if "export" in then:
        yield from export_problems(spec)
        known = teacher_names(spec.distill.teacher)
        for name in asked.adaptors:
            if name not in known:
                yield Problem(f"no teacher is called {name!r}", "export.adaptors", f"Teachers: {', '.join(known)}.")
        if asked.format is not ExportFormat.onnx and "gen_trt_engine" in then and not spec.gen_trt_engine.onnx_file:
            hint = "Leave export.format at onnx, or give gen_trt_engine.onnx_file."
            yield Problem(
                f"an engine is built from ONNX, and format {asked.format.value} writes none", "export.format", hint
            )
    if "gen_trt_engine" in then:
        yield from engine_problems(spec.gen_trt_engine.tensorrt)
